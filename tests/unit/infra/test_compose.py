"""The platform in containers: what docker-compose.yml promises of every service, and that its configuration is the one
of the local platform but for hosts, ports and paths."""

import json
import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # has no types

from infra import airflow, compose, connect, container, home
from infra.artifacts.install import Programs
from infra.artifacts.lock import artifacts, go_module
from infra.compose import ArchiverChoice, ComposeProfile
from infra.container import SAME_AS
from infra.home import Ports, completed, generated
from infra.provision import STEPS
from infra.services import services
from runtime.errors import TerminalError
from runtime.settings import Settings, read
from runtime.version import ROOT
from tests.services import secrets_of

pytestmark = pytest.mark.unit

BASE = 18_000
CORE, FULL, SCALE = ComposeProfile
FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
BY_HAND = {name for name, service in SERVICES.items() if service.get("profiles") == ["by-hand"]}
ONCE = {name for name, service in SERVICES.items() if service["restart"] == "no"} - BY_HAND
PROVISION = ["python", "-m", "infra.provision"]
DEFAULT = re.compile(r"\$\{(\w+):-([^}]*)\}")

Init = Callable[..., Path]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Init:
    """``init(profiles…)`` writes a directory and returns it; ``.env`` is beside it."""
    monkeypatch.setenv("ANABRANCH_PORT_BASE", str(BASE))

    def call(*profiles: ComposeProfile, name: str = "made", archiver: ArchiverChoice | None = None) -> Path:
        compose.init(tmp_path / name, tmp_path / f"{name}.env", profiles or (CORE,), archiver)
        return tmp_path / name

    return call


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def environment(directory: Path) -> dict[str, str]:
    lines = directory.with_name(f"{directory.name}.env").read_text().splitlines()
    return properties("\n".join(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert int(service["user"].partition(":")[0]) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"(\$\{\w+:-)?\d+[mg]\}?", service["mem_limit"])
    assert set(service["networks"]) <= FILE["networks"].keys()
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_by_version_and_can_be_replaced(name: str) -> None:
    match = DEFAULT.fullmatch(SERVICES[name]["image"])
    assert match is not None
    tag = match[2].rpartition(":")[2]
    assert re.match(r"\d", tag), f"{match[2]} may change under its name"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_that_stays_is_asked_whether_it_is_well(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    if name in BY_HAND:
        assert (check, SERVICES[name]["restart"]) == ({"disable": True}, "no")
    elif name in ONCE:
        assert check == {"disable": True}
        waiting = [
            other
            for other, service in SERVICES.items()
            if service.get("depends_on", {}).get(name) == {"condition": "service_completed_successfully"}
            and service.get("profiles", []) in ([], SERVICES[name].get("profiles", []))
        ]
        assert set(waiting) - ONCE, "up --wait fails on a step that ended, unless something that stays waits for it"
    else:
        assert len(check["test"]) > 1
        assert check.keys() >= {"interval", "timeout", "retries"}


def test_ports_are_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    outside = {name for name, service in SERVICES.items() if "outside" in service["networks"]}
    assert outside == {name for name, service in SERVICES.items() if service.get("ports")}
    assert [name for name, network in FILE["networks"].items() if not (network or {}).get("internal")] == ["outside"]


def test_what_is_mounted_is_declared_and_configuration_is_read_only() -> None:
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source, _, target = DEFAULT.sub("config", mount).partition(":")
            assert source in {*FILE["volumes"], "/scratch"} or target.endswith(":ro"), f"{name}: {mount}"
        for secret in service.get("secrets", ()):
            assert (secret if isinstance(secret, str) else secret["source"]) in FILE["secrets"]


def test_what_a_service_waits_for_is_in_its_profiles() -> None:
    for name, service in SERVICES.items():
        for other, wanted in service.get("depends_on", {}).items():
            theirs, mine = SERVICES[other].get("profiles"), service.get("profiles")
            mine = ["secor"] if mine == ["scale-secor"] else mine  # never without it
            assert theirs is None or not wanted.get("required", True) or theirs == mine, f"{name} waits for {other}"


def test_no_secret_is_in_the_file_or_in_the_variables(init: Init) -> None:
    made = init(FULL)
    settings = json.loads((made / "settings.json").read_text())
    secrets = [
        settings["postgres_password"], settings["supervisor_password"], settings["s3"]["secret_key"],
        settings["kafka"]["password"], settings["trino"]["password"], settings["trino"]["shared_secret"],
        *(settings[name]["password"] for name in ("catalog", "ops", "shop", "airflow")),
        *(settings[name]["database"]["password"] for name in ("cdc", "airflow")),
        *(settings["airflow"][name] for name in ("fernet_key", "jwt_secret", "api_secret_key")),
    ]  # fmt: skip
    assert len(set(secrets)) == len(secrets)
    public = (ROOT / "docker-compose.yml").read_text() + made.with_name("made.env").read_text()
    assert not [secret for secret in secrets if secret in public]
    holding = {
        str(path.relative_to(made))
        for path in made.rglob("*")
        if path.is_file() and any(secret in path.read_text() for secret in secrets)
    }
    nodes = {f"trino/{node}/config.properties" for node in ("coordinator", "worker")}
    assert holding == {
        "settings.json", "logins/airflow-api.json", "logins/batch.json", "logins/cdc.json", "logins/connect.json",
        "postgres/password", "minio/password", "kafka/kafka-1.properties", "kafka/format.arguments", *nodes
    }  # fmt: skip


def test_only_the_owner_enters_the_directory_and_containers_can_read_what_is_mounted(init: Init) -> None:
    before = os.umask(0o077)
    try:
        made = init()
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o644 if path.is_file() else 0o755) for path in made.rglob("*"))


def test_people_on_the_machine_query_by_the_published_port_as_themselves(init: Init) -> None:
    directory = init()
    everything, analyst = read(directory / "settings.json"), read(directory / "outside" / "analyst.json")
    assert (analyst.trino.host, str(analyst.trino.port)) == ("127.0.0.1", environment(directory)["TRINO_PORT"])
    assert analyst.trino.ca_file == directory / "tls" / "certificate.pem"
    assert (analyst.trino.user, analyst.trino.password) == ("analyst", everything.identities["analyst"])
    assert secrets_of(analyst) == {everything.identities["analyst"].get_secret_value()}


def test_a_second_call_renders_the_same(init: Init) -> None:
    made = init(FULL)
    before = {path: path.read_bytes() for path in made.parent.rglob("*") if path.is_file()}
    init(FULL)
    assert {path: path.read_bytes() for path in made.parent.rglob("*") if path.is_file()} == before


def test_what_was_added_to_the_variables_stays_and_profiles_follow_the_call(init: Init) -> None:
    made = init()
    path = made.with_name("made.env")
    path.write_text(path.read_text().replace("TRINO_PORT=18080", "TRINO_PORT=4711") + "KAFKA_IMAGE=mine:1\n")
    init(FULL, archiver="anabranch")
    found = environment(made)
    assert (found["TRINO_PORT"], found["KAFKA_IMAGE"]) == ("4711", "mine:1")
    assert (found["COMPOSE_PROFILES"], found["ARCHIVER"]) == ("full,${ARCHIVER}", "anabranch")
    init(FULL)
    assert environment(made)["ARCHIVER"] == "anabranch", "it is remembered"


def test_profiles_are_remembered(init: Init) -> None:
    made = init(FULL, SCALE)
    assert compose.remembered(made.with_name("made.env")) == (FULL, SCALE)
    assert compose.remembered(made.with_name("none.env")) == (CORE,)


def test_a_setting_that_was_edited_is_rendered(init: Init) -> None:
    made = init()
    settings = json.loads((made / "settings.json").read_text())
    settings["archiver"] = {"max_age_seconds": 90}
    (made / "settings.json").write_text(json.dumps(settings))
    init()
    assert "secor.max.file.age.seconds=90\n" in (made / "secor" / "secor.properties").read_text()
    assert read(made / "settings.json").archiver.max_age_seconds == 90


def test_a_log_does_not_change_its_number_of_brokers(init: Init) -> None:
    init()
    with pytest.raises(TerminalError, match="1 brokers, and full \\+ scale has 3"):
        init(FULL, SCALE)


def test_the_ports_of_all_brokers_are_looked_at(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANABRANCH_PORT_BASE")
    monkeypatch.setattr(home, "BASES", (12_000, 13_000))
    third = Ports(12_000).kafka + 200
    monkeypatch.setattr(home, "port_is_free", lambda port: port != third)
    assert read(init(CORE, name="one") / "settings.json").port_base == 12_000
    assert read(init(SCALE, name="three") / "settings.json").port_base == 13_000


def test_three_brokers_keep_every_record_three_times(init: Init) -> None:
    made = init(SCALE)
    settings = read(made / "settings.json")
    assert (settings.kafka.replication_factor, settings.kafka.min_insync_replicas) == (3, 2)
    assert settings.kafka.bootstrap == "kafka-1:9092,kafka-2:9092,kafka-3:9092"
    brokers = [properties((made / "kafka" / f"kafka-{number}.properties").read_text()) for number in (1, 2, 3)]
    assert [one["node.id"] for one in brokers] == ["1", "2", "3"]
    assert {one["controller.quorum.voters"] for one in brokers} == {"1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093"}
    for one in brokers:
        assert one["min.insync.replicas"] == one["transaction.state.log.min.isr"] == "2"
        assert one["offsets.topic.replication.factor"] == one["transaction.state.log.replication.factor"] == "3"
    ports = {one["advertised.listeners"].rpartition(":")[2] for one in brokers}
    assert ports == {environment(made)[f"KAFKA_PORT_{number}"] for number in (1, 2, 3)}
    assert environment(made)["COMPOSE_PROFILES"] == "scale,${ARCHIVER},scale-${ARCHIVER}"
    assert settings.spark.master == "spark://spark-master:7077"
    assert SERVICES["speed"]["environment"]["ANABRANCH_SPARK__MASTER"] == "${SPEED_MASTER:-local[2]}"


def with_secrets(one: Any, other: Any, name: str = "") -> Any:
    """``one`` with the secrets of ``other``."""
    if isinstance(one, dict) and name not in ("identities", "people"):
        return {key: with_secrets(value, other[key], key) for key, value in one.items()}
    return other if re.search("password|secret|key$|identities|people", name) and name != "access_key" else one


@pytest.fixture
def local(tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, init: Init) -> tuple[Settings, Path]:
    """A local platform with the secrets of an installation in containers: its settings and its home."""
    secrets = json.loads((init(FULL) / "settings.json").read_text())
    home = tmp_path / "home"
    home.mkdir()
    written = with_secrets(completed(generated(Ports(BASE)), home), secrets) | {"profile": "full"}
    (home / "settings.json").write_text(json.dumps(written))
    monkeypatch.setenv("ANABRANCH_HOME", str(home))
    settings = Settings()
    services(settings, programs)
    return settings, home


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def test_kafka_is_configured_as_on_one_machine_but_for_addresses(local: tuple[Settings, Path], init: Init) -> None:
    made = properties((init(FULL) / "kafka" / "kafka-1.properties").read_text())
    there = properties((local[1] / "config" / "kafka" / "server.properties").read_text())
    assert differing(made, there) == {
        "controller.quorum.voters", "listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs",
        "listener.name.outside.scram-sha-512.sasl.jaas.config",
    }  # fmt: skip


def test_trino_is_configured_as_on_one_machine_but_for_addresses(local: tuple[Settings, Path], init: Init) -> None:
    made, there = init(FULL) / "trino" / "coordinator", local[1] / "config" / "trino"
    expected = {
        "config.properties": {
            "http-server.http.port",
            "http-server.https.port",
            "http-server.https.keystore.path",
            "discovery.uri",
            "plugin.dir",
            "catalog.config-dir",
            "password-authenticator.config-files",
            "access-control.config-files",
        },
        "password-authenticator.properties": {"file.password-file"},
        "access-control.properties": {"security.config-file"},
        "log.properties": set(),
        "catalog/lake.properties": {"iceberg.jdbc-catalog.connection-url", "s3.endpoint"},
        "catalog/ops.properties": {"connection-url"},
        "catalog/shop.properties": {"connection-url"},
    }
    for name, addresses in expected.items():
        one, other = properties((made / name).read_text()), properties((there / name).read_text())
        assert differing(one, other) == addresses, name
    for name in ("passwords", "rules.json"):
        assert (made / name).read_text() == (there / name).read_text()


def test_postgres_is_configured_as_on_one_machine_but_for_addresses(
    local: tuple[Settings, Path], programs: Programs, init: Init
) -> None:
    (service,) = (one for one in services(local[0], programs) if one.name == "postgres")
    flags = service.command[service.command.index("-c") :]
    there = properties("\n".join(flag for flag in flags if flag != "-c"))
    text = (init(FULL) / "postgres" / "postgresql.conf").read_text()
    made = {key: value.strip("'") for key, value in (line.split(" = ") for line in text.splitlines())}
    assert differing(made, there) == {"listen_addresses", "port", "unix_socket_directories"}


def test_airflow_and_connect_are_configured_as_on_one_machine_but_for_addresses(
    local: tuple[Settings, Path], programs: Programs, init: Init
) -> None:
    contained = read(init(FULL) / "settings.json")
    made, there = airflow.configuration(contained), airflow.configuration(local[0])
    assert {
        f"{section}.{key}" for section in made for key in differing(made[section], there[section])
    } == {
        "core.execution_api_server_url", "database.sql_alchemy_conn", "database.sql_alchemy_conn_async",
        "api.host", "api.port",
    }  # fmt: skip
    one, other = connect.configuration(contained, programs), connect.configuration(local[0], programs)
    assert differing(one, other) == {"bootstrap.servers", "listeners", "rest.advertised.host.name"}


def test_our_image_knows_every_service_that_compose_starts_from_it(
    init: Init, local: tuple[Settings, Path], programs: Programs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = [
        service["command"][0]
        for service in SERVICES.values()
        if service["image"].startswith("${ANABRANCH_IMAGE") and "entrypoint" not in service
    ]
    contained, everything = read(init(FULL) / "settings.json"), services(local[0], programs)
    others = {"postgres", "kafka", "minio", "trino"}
    assert {SAME_AS.get(name, name) for name in started} == {one.name for one in everything} - others
    for name in started:
        monkeypatch.setenv("ANABRANCH_HOME", str(tmp_path / name))
        made = container.service(name, read(init(FULL) / "settings.json"))
        (there,) = (one for one in everything if one.name == made.name)
        assert made.command[1:2] == there.command[1:2]
        written = {path.parts[-2] for path in (tmp_path / name).rglob("*") if path.is_file()}
        assert written == (
            {"connect", "secrets"} if name == "connect" else {"airflow", "spark"} if "airflow" in name else set()
        )
    with pytest.raises(TerminalError, match="there is no service 'nobody'; there are connect, archiver"):
        container.service("nobody", contained)


def test_the_steps_between_the_starts_are_those_that_there_are() -> None:
    steps = {name: service["command"] for name, service in SERVICES.items() if service.get("entrypoint") == PROVISION}
    assert steps == {name: [name] for name in ONCE}
    assert STEPS.keys() - {"restore"} == ONCE


def test_images_have_the_versions_that_are_locked() -> None:
    (trino,), (postgres,) = artifacts("trino"), artifacts("postgres")
    (broker,) = (one for one in artifacts("kafka") if one.coordinate.split(":")[1] == "kafka_2.13")
    defaults = {match[1]: match[2] for service in SERVICES.values() if (match := DEFAULT.fullmatch(service["image"]))}
    assert defaults["TRINO_IMAGE"] == f"trinodb/trino:{trino.coordinate.split(':')[2]}"
    assert defaults["KAFKA_IMAGE"] == f"apache/kafka:{broker.coordinate.split(':')[2]}"
    assert defaults["POSTGRES_IMAGE"].startswith(f"postgres:{postgres.coordinate.split(':')[2].rpartition('.')[0]}-")
    minio, module = (ROOT / "infra" / "images" / "minio" / "Dockerfile").read_text(), go_module()
    assert f"ARG MINIO_VERSION={module.version}\n" in minio
    assert f"ARG MINIO_SUM={module.sum}\n" in minio
    app, make = (ROOT / "infra" / "images" / "app" / "Dockerfile").read_text(), (ROOT / "Makefile").read_text()
    assert re.findall(r"UV_VERSION=([\d.]+)", app) == re.findall(r"UV_VERSION := ([\d.]+)", make)


def test_secor_stores_what_our_reader_expects_and_never_over_an_object_of_ours(init: Init) -> None:
    text = (init() / "secor" / "secor.properties").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = properties("\n".join(lines))
    settings = read(init() / "settings.json")
    assert len(found) == len(lines), "of a property that is written twice the first one counts"
    assert lines[-1] == "include=secor.common.properties"
    assert found["secor.kafka.group"] == settings.archiver.group
    assert found["secor.compression.codec"] == "org.apache.hadoop.io.compress.DefaultCodec"
    assert found["kafka.new.consumer.isolation.level"] == "read_committed"
    assert found["secor.generation"] == "2", "our archiver's objects are of generation 1"
    assert found["secor.kafka.topic_filter"] == r"changelog\\..*", "the backslash is read twice"
    assert any(
        mount.startswith(f"{found['secor.local.path'].rsplit('/', 1)[0]}:") for mount in SERVICES["secor"]["tmpfs"]
    )


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (b"\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00", True),
        (b"\x00\x00\x00\x0a\x00\x00\x00\x01\x00\x23\x00\x00\x00\x00", False),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"", False),
    ],
    ids=["an answer", "an error", "something else", "nothing"],
)
def test_a_broker_is_healthy_if_it_answers_a_request(answer: bytes, healthy: bool) -> None:
    asked = []

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            asked.append(connection.recv(14, socket.MSG_WAITALL))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve, server)
        words = SERVICES["kafka-1"]["healthcheck"]["test"][1:]
        script = words[-1].replace("$$", "$").replace("/9092", f"/{server.getsockname()[1]}")
        done = subprocess.run([*words[:-1], script], capture_output=True, check=False, timeout=20)
        serving.result(20)
    assert (done.returncode == 0) == healthy
    # size, ApiVersions, version 0, correlation id 1, no client id
    assert asked == [bytes.fromhex("0000000a 0012 0000 00000001 ffff")]


def test_a_service_of_ours_is_healthy_while_its_loop_says_so(tmp_path: Path) -> None:
    beat = tmp_path / "heartbeat"
    shell, script = SERVICES["speed"]["healthcheck"]["test"]
    assert shell == "CMD-SHELL"

    def healthy() -> bool:
        words = script.replace("$$", "$").replace("/tmp/heartbeat", str(beat))
        return subprocess.run(["sh", "-c", words], capture_output=True, check=False).returncode == 0

    assert not healthy()
    beat.write_text("running")
    assert healthy()
    os.utime(beat, (time.time() - 90, time.time() - 90))
    assert not healthy(), "the loop hangs"
    beat.write_text("failed")
    assert not healthy()
