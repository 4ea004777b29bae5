"""What is started: on loopback only, within limits of memory, and with no secret where others can read it."""

import os
import re
import shlex
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from supervisor.options import ServerOptions  # type: ignore[import-untyped]  # has no types

from infra import supervise
from infra.artifacts.install import Programs
from infra.home import Ports
from infra.preflight import MEMORY_GIB
from infra.service import Service
from infra.services import environment, services
from runtime import spark
from runtime.settings import Settings

pytestmark = pytest.mark.unit

BASE = 17_000
SECRETS = {
    "POSTGRES_PASSWORD": "secret-of-postgres",
    "SUPERVISOR_PASSWORD": "secret-of-supervisor",
    "S3__SECRET_KEY": "secret-of-s3",
    "OPS__PASSWORD": "secret-of-ops",
    "CATALOG__PASSWORD": "secret-of-catalog",
}
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "mib": 2**20}


@pytest.fixture
def settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    ports = Ports(BASE)
    values = {
        **SECRETS,
        "KAFKA__BOOTSTRAP": f"127.0.0.1:{ports.kafka}",
        "S3__ENDPOINT": f"http://127.0.0.1:{ports.minio}",
        "TRINO__PORT": str(ports.trino),
    }
    for name in ("ops", "catalog"):
        values |= {
            f"{name.upper()}__NAME": name,
            f"{name.upper()}__USER": name,
            f"{name.upper()}__PORT": str(ports.postgres),
        }
    for key, value in values.items():
        monkeypatch.setenv(f"ANABRANCH_{key}", value)
    return Settings(port_base=BASE)


@pytest.fixture
def by_name(settings: Settings, programs: Programs) -> dict[str, Service]:
    made = services(settings, programs)
    supervise.write_config(settings, made)
    return {service.name: service for service in made}


@pytest.fixture
def config(settings: Settings, by_name: dict[str, Service]) -> dict[str, str]:
    """What was written: path below the home → text."""
    files = (path for path in settings.home.rglob("*") if path.is_file())
    return {str(path.relative_to(settings.home)): path.read_text() for path in files}


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_services_are_those_that_the_commands_know(by_name: dict[str, Service]) -> None:
    assert list(by_name) == ["postgres", "kafka", "minio", "trino", "archiver", "speed"]


def test_every_service_listens_on_loopback_only(by_name: dict[str, Service], config: dict[str, str]) -> None:
    assert "listen_addresses=127.0.0.1" in by_name["postgres"].command
    assert "unix_socket_directories=" in by_name["postgres"].command
    addresses = [part.split("=")[1] for part in by_name["minio"].command if "address=" in part]
    assert [address.split(":")[0] for address in addresses] == ["127.0.0.1"] * 2
    assert "-Dnode.bind-ip=127.0.0.1" in by_name["trino"].command
    kafka = properties(config["config/kafka/server.properties"])
    for key in ("listeners", "advertised.listeners"):
        assert all("://127.0.0.1:" in listener for listener in kafka[key].split(","))
    assert kafka["controller.quorum.voters"].startswith("1@127.0.0.1:")
    assert f"port=127.0.0.1:{BASE + 9}\n" in config["config/supervisord.conf"]
    assert by_name["speed"].environment["ANABRANCH_SPEED__UI_PORT"] == str(Ports(BASE).spark_ui)
    assert by_name["speed"].url == f"http://127.0.0.1:{Ports(BASE).spark_ui}"


def test_a_local_spark_listens_on_loopback_only(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    builder = MagicMock()
    builder.appName.return_value = builder.master.return_value = builder.config.return_value = builder
    monkeypatch.setattr(spark, "SparkSession", MagicMock(builder=builder))
    spark.session(settings, "any", "1g")
    conf = dict(call.args for call in builder.config.call_args_list)
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1", "where Spark's user interface listens"
    assert (conf["spark.driver.host"], conf["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")


def test_every_address_that_is_written_is_loopback_and_on_a_port_of_the_home(
    by_name: dict[str, Service], config: dict[str, str]
) -> None:
    text = "\n".join([*config.values(), *(" ".join([*one.command, one.url]) for one in by_name.values())])
    found = re.findall(r"([\w.*-]*|\[[\w:]*\]):(\d{4,5})\b", text)
    assert {host for host, _ in found} == {"127.0.0.1"}
    assert {int(port) for _, port in found} <= set(Ports(BASE).all())


def test_every_url_leads_to_loopback(by_name: dict[str, Service]) -> None:
    assert all(re.match(r"\w+://127\.0\.0\.1:\d+", service.url) for service in by_name.values())


def test_every_server_has_a_limit_of_memory_and_together_they_fit(
    settings: Settings, by_name: dict[str, Service]
) -> None:
    limits = {
        "kafka": re.findall(r"-Xmx(\d+)(\w+)", " ".join(by_name["kafka"].command)),
        "trino": re.findall(r"-Xmx(\d+)(\w+)", " ".join(by_name["trino"].command)),
        "minio": re.findall(r"(\d+)(\w+)", by_name["minio"].environment["GOMEMLIMIT"]),
        "postgres": re.findall(r"shared_buffers=(\d+)(\w)", " ".join(by_name["postgres"].command)),
        "speed": re.findall(r"(\d+)(\w+)", settings.speed.driver_memory),
        "batch": re.findall(r"(\d+)(\w+)", settings.batch.driver_memory),
    }
    assert {name: len(found) for name, found in limits.items()} == dict.fromkeys(limits, 1)
    total = sum(int(number) * UNITS[unit.lower()] for ((number, unit),) in limits.values())
    assert total < MEMORY_GIB * 2**30


def test_no_command_line_shows_a_secret(by_name: dict[str, Service]) -> None:
    shown = " ".join(part for service in by_name.values() for part in (*service.command, service.url))
    assert [secret for secret in SECRETS.values() if secret in shown] == []


def test_only_the_owner_can_read_what_is_written(settings: Settings, config: dict[str, str]) -> None:
    assert {name for name, text in config.items() if any(secret in text for secret in SECRETS.values())} == {
        "config/supervisord.conf",
        "config/trino/catalog/lake.properties",
        "config/trino/catalog/ops.properties",
    }
    assert {(settings.home / name).stat().st_mode & 0o777 for name in config} == {0o600}


def test_a_service_gets_no_secret_in_its_environment_but_minio_its_own(
    settings: Settings, by_name: dict[str, Service]
) -> None:
    for service in by_name.values():
        given = environment(settings, service).values()
        expected = ["secret-of-s3"] if service.name == "minio" else []
        assert [value for value in given if value in SECRETS.values()] == expected


def test_writing_the_configuration_again_changes_nothing(
    settings: Settings, programs: Programs, by_name: dict[str, Service], config: dict[str, str]
) -> None:
    again = services(settings, programs)
    assert again == list(by_name.values())
    assert {name: (settings.home / name).read_text() for name in config} == config


@pytest.mark.parametrize(("user", "expected"), [(0, "setpriv"), (1000, "/programs/postgres/bin/postgres")])
def test_postgres_never_runs_as_root(
    settings: Settings, programs: Programs, monkeypatch: pytest.MonkeyPatch, user: int, expected: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    command = services(settings, programs)[0].command
    assert command[0] == expected
    assert ("--reuid=65534" in command) == (user == 0)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "100%",
        "it's",
    ],
)
def test_supervisor_reads_the_commands_that_were_meant(
    settings: Settings, programs: Programs, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    moved = settings.home / name
    monkeypatch.setenv("ANABRANCH_HOME", str(moved))
    settings = Settings()
    meant = services(settings, programs)
    supervise.write_config(settings, meant)
    options = ServerOptions()
    options.realize(["-c", str(supervise.config_path(settings))])
    read = {group.name: group.process_configs[0] for group in options.process_group_configs}
    assert read.keys() == {service.name for service in meant}
    for service in meant:
        process = read[service.name]
        assert shlex.split(process.command) == service.command
        assert process.environment == environment(settings, service)
        assert process.stdout_logfile == str(supervise.log_path(settings, service.name))
