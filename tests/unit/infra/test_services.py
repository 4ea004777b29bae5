"""What is started: on loopback only, within limits of memory, and with no secret where others can read it."""

import json
import os
import re
import shlex
import socket
from configparser import ConfigParser
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pydantic import SecretStr
from sqlalchemy.engine import make_url
from supervisor.options import ServerOptions  # type: ignore[import-untyped]  # has no types

from changelog.sources.cdc.connect import configuration
from changelog.sources.cdc.mapping import TABLES
from infra import airflow, supervise
from infra.airflow import COMPONENTS
from infra.artifacts.install import Programs
from infra.home import Ports
from infra.identities import IDENTITIES
from infra.platform import READY_SECONDS
from infra.preflight import MEMORY_GIB
from infra.service import Service
from infra.services import environment, services
from runtime import spark
from runtime.settings import Settings
from runtime.spark_submit import cluster_conf, spark_home, submit_conf
from runtime.version import ROOT

pytestmark = pytest.mark.unit

BASE = 17_000
SECRETS = {
    "POSTGRES_PASSWORD": "secret-of-postgres",
    "SUPERVISOR_PASSWORD": "secret-of-supervisor",
    "S3__SECRET_KEY": "secret-of-s3",
    "KAFKA__PASSWORD": "secret-of-kafka",
    "TRINO__PASSWORD": "secret-of-trino",
    "TRINO__SHARED_SECRET": "secret-of-trino's-nodes",
    "OPS__PASSWORD": "secret-of-ops",
    "CATALOG__PASSWORD": "secret-of-catalog",
    "SHOP__PASSWORD": "secret-of-shop",
    "CDC__DATABASE__PASSWORD": "secret-of-capture",
    "AIRFLOW__DATABASE__PASSWORD": "secret-of-airflow's%database",
    "AIRFLOW__PASSWORD": "secret-of-airflow",
    "AIRFLOW__FERNET_KEY": "secret-of-fernet",
    "AIRFLOW__JWT_SECRET": "secret-of-jwt",
    "AIRFLOW__API_SECRET_KEY": "secret-of-api",
}
OWN = {name: SecretStr(f"secret-of-the-{name}") for name in IDENTITIES}
ALL_SECRETS = [*SECRETS.values(), *(secret.get_secret_value() for secret in OWN.values())]
CORE = ["postgres", "kafka", "minio", "trino", "archiver", "derive", "speed", "commands"]
CAPTURE = ["connect", "cdc"]
UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "mib": 2**20}


@pytest.fixture
def settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    ports = Ports(BASE)
    values = {
        **SECRETS,
        "KAFKA__BOOTSTRAP": f"127.0.0.1:{ports.kafka}",
        "KAFKA__USER": "admin",
        "S3__ENDPOINT": f"http://127.0.0.1:{ports.minio}",
        "TRINO__PORT": str(ports.trino),
    }
    for name in ("ops", "catalog"):
        values |= {
            f"{name.upper()}__NAME": name,
            f"{name.upper()}__USER": name,
            f"{name.upper()}__PORT": str(ports.postgres),
        }
    values |= {f"{name}__PORT": str(ports.postgres) for name in ("AIRFLOW__DATABASE", "SHOP", "CDC__DATABASE")}
    values["CDC__CONNECT_URL"] = f"http://127.0.0.1:{ports.connect}"
    for key, value in values.items():
        monkeypatch.setenv(f"ANABRANCH_{key}", value)
    return Settings(port_base=BASE, profile="full", identities=OWN)


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


def configparser(text: str) -> ConfigParser:
    parser = ConfigParser()  # as Airflow reads it
    parser.read_string(text)
    return parser


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_services_are_those_that_the_commands_know(by_name: dict[str, Service]) -> None:
    assert list(by_name) == [*CORE, *CAPTURE, *COMPONENTS]
    assert READY_SECONDS.keys() == by_name.keys()


def test_the_core_is_the_full_platform_without_airflow_and_capture(
    settings: Settings, programs: Programs, by_name: dict[str, Service]
) -> None:
    core = services(settings.model_copy(update={"profile": "core"}), programs)
    assert core == [by_name[name] for name in CORE]


def test_what_one_broker_alone_acknowledges_is_on_disk(config: dict[str, str]) -> None:
    assert properties(config["config/kafka/server.properties"])["log.flush.interval.messages"] == "1"


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
    connect = properties(config["config/connect/worker.properties"])
    assert connect["listeners"] == f"http://127.0.0.1:{Ports(BASE).connect}"
    assert connect["rest.advertised.host.name"] == "127.0.0.1"
    assert f"port=127.0.0.1:{BASE + 9}\n" in config["config/supervisord.conf"]
    api = configparser(config["airflow/airflow.cfg"])["api"]
    assert (api["host"], api["port"]) == ("127.0.0.1", str(Ports(BASE).airflow))
    for name in ("airflow-scheduler", "airflow-triggerer"):
        assert "--skip-serve-logs" in by_name[name].command, "it would serve its logs on all interfaces"
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
    config = {name: text for name, text in config.items() if name != "config/trino/passwords"}  # USER:ROUNDS:…
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
        "connect": re.findall(r"-Xmx(\d+)(\w+)", " ".join(by_name["connect"].command)),
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
    assert [secret for secret in ALL_SECRETS if secret in shown] == []


def test_only_the_owner_can_read_what_is_written(settings: Settings, config: dict[str, str]) -> None:
    assert {name for name, text in config.items() if any(secret in text for secret in ALL_SECRETS)} == {
        "config/kafka/server.properties",
        "config/kafka/format.arguments",
        "config/connect/worker.properties",
        "config/connect/secrets/database.properties",
        "config/supervisord.conf",
        "config/trino/config.properties",
        "config/trino/catalog/lake.properties",
        "config/trino/catalog/ops.properties",
        "config/trino/catalog/shop.properties",
        "airflow/airflow.cfg",
        "airflow/passwords.json",
    }
    assert {(settings.home / name).stat().st_mode & 0o777 for name in config} == {0o600}


def test_a_service_gets_no_secret_in_its_environment_but_minio_its_own(
    settings: Settings, by_name: dict[str, Service]
) -> None:
    for service in by_name.values():
        given = environment(settings, service).values()
        expected = ["secret-of-s3"] if service.name == "minio" else []
        assert [value for value in given if any(secret in value for secret in ALL_SECRETS)] == expected


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
    settings = Settings(port_base=BASE, profile="full", identities=OWN)
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


def test_the_connector_names_no_secret_and_the_worker_finds_it(settings: Settings, config: dict[str, str]) -> None:
    made = configuration(settings, TABLES)
    assert not [value for value in made.values() if "secret-of" in value]
    path, _, field = made["database.password"].removeprefix("${file:").removesuffix("}").rpartition(":")
    assert properties(Path(path).read_text())[field] == "secret-of-capture"
    worker = properties(config["config/connect/worker.properties"])
    assert Path(path).is_relative_to(worker["config.providers.file.param.allowed.paths"])
    assert worker["config.providers"] == "file"


def test_airflow_keeps_to_its_own_database_and_to_our_files(settings: Settings, config: dict[str, str]) -> None:
    read = configparser(config["airflow/airflow.cfg"])
    url = make_url(read["database"]["sql_alchemy_conn"])
    database = settings.airflow.database
    assert (url.drivername, url.host, url.port) == ("postgresql+psycopg", "127.0.0.1", Ports(BASE).postgres)
    assert (url.database, url.username, url.password) == ("airflow", "airflow", database.password.get_secret_value())
    assert read["database"]["sql_alchemy_conn_async"] == read["database"]["sql_alchemy_conn"]
    assert read["core"]["dags_folder"] == str(ROOT / "dags")
    assert read["core"]["load_examples"] == "False"
    assert Path(read["logging"]["base_log_folder"]) == settings.home / "logs" / "airflow"
    assert json.loads(config["airflow/passwords.json"]) == {"admin": "secret-of-airflow"}
    assert read["core"]["simple_auth_manager_passwords_file"] == str(settings.home / "airflow" / "passwords.json")
    assert (read["core"]["fernet_key"], read["api_auth"]["jwt_secret"], read["api"]["secret_key"]) == (
        "secret-of-fernet", "secret-of-jwt", "secret-of-api"
    )  # fmt: skip


def test_dags_find_spark_where_the_settings_say(settings: Settings) -> None:
    elsewhere = settings.model_copy(
        update={"spark": settings.spark.model_copy(update={"master": "spark://there:7077"})}
    )
    for given, master in ((settings, "local[2]"), (elsewhere, "spark://there:7077")):
        assert json.loads(airflow.connections(given)["spark_default"])["host"] == master


def test_what_spark_submit_must_know_is_what_a_session_of_its_own_would_get(
    settings: Settings, by_name: dict[str, Service], config: dict[str, str]
) -> None:
    directory = Path(by_name["airflow-scheduler"].environment["SPARK_CONF_DIR"]).relative_to(settings.home)
    read = dict(line.split(" ", 1) for line in config[f"{directory}/spark-defaults.conf"].splitlines())
    assert read == submit_conf(settings, settings.batch.driver_memory)
    assert (read["spark.driver.host"], read["spark.driver.memory"]) == ("127.0.0.1", settings.batch.driver_memory)
    assert "-Duser.timezone=UTC" in read["spark.driver.extraJavaOptions"]
    assert read["spark.driver.extraClassPath"] == f"{settings.spark.jars}/*:{spark_home()}/jars/*"
    assert "SharedArchiveFile" not in read["spark.driver.extraJavaOptions"]
    settings.spark.classes = Path("made.jsa")
    options = submit_conf(settings, "1g")["spark.driver.extraJavaOptions"]
    assert "-XX:SharedArchiveFile=made.jsa" in options
    cluster = settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": "yarn"})})
    assert "spark.driver.host" not in submit_conf(cluster, "1g")
    cluster.spark.master = "spark://there:7077"
    own = submit_conf(cluster, "1g")
    assert (own["spark.driver.host"], own["spark.driver.bindAddress"]) == (socket.gethostname(), "0.0.0.0")
    assert cluster_conf(cluster) == {}, "somebody else's cluster"
    cluster.spark.secret = SecretStr("known to the cluster")
    assert cluster_conf(cluster)["spark.authenticate.secret"] == "known to the cluster"
    assert "known to the cluster" not in str(submit_conf(cluster, "1g")), "a session's own goes on a command line"
    cluster.spark.master = "local[2]"
    assert cluster_conf(cluster) == {}


def test_a_session_leaves_master_and_memory_to_spark_submit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"PYSPARK_GATEWAY_PORT": "1"})
    builder = MagicMock()
    builder.appName.return_value = builder.config.return_value = builder
    monkeypatch.setattr(spark, "SparkSession", MagicMock(builder=builder))
    spark.session(settings, "any", "1g")
    assert not builder.master.called
    conf = dict(call.args for call in builder.config.call_args_list)
    assert conf.keys() & submit_conf(settings, "1g").keys() == set()
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_processes_of_airflow_can_be_found_by_their_environment(by_name: dict[str, Service]) -> None:
    """Airflow sets titles of processes, which by default overwrites what /proc shows of the environment."""
    assert {by_name[name].environment["SPT_NOENV"] for name in COMPONENTS} == {"1"}


def test_interfaces_ask_who_you_are(by_name: dict[str, Service]) -> None:
    logins = {name: service.login for name, service in by_name.items() if service.login}
    assert logins.keys() == {"trino", "airflow-api", "connect"}
    assert logins["trino"] == ("engineer", OWN["engineer"])
    user, password = logins["airflow-api"]
    assert (user, password.get_secret_value()) == ("admin", "secret-of-airflow")
    assert "secret" not in repr(by_name["airflow-api"])
