"""The services of the local platform as data: what to run, with what configuration, and how to ask if it is ready."""

import os
import sys
import uuid
from pathlib import Path

from changelog.commands.schema import OUTCOMES
from changelog.sources.cdc.stream import TOPIC
from infra import airflow, connect
from infra.artifacts.install import Programs
from infra.configuration import (
    KAFKA_LOG,
    Node,
    Outside,
    kafka_flags,
    kafka_format,
    kafka_properties,
    minio_environment,
    postgres_options,
    properties,
    trino_files,
    trino_flags,
    trino_node,
)
from infra.home import Ports, certificate_file, identity_file, write_private
from infra.identities import acting_as
from infra.service import Service
from runtime.settings import Settings
from runtime.version import ROOT

NOBODY = 65534


def services(settings: Settings, programs: Programs) -> list[Service]:
    """All services of this home's profile, in the order in which they start."""
    ports = Ports(settings.port_base)
    return [
        postgres(settings, programs, ports),
        kafka(settings, programs, ports),
        minio(settings, programs, ports),
        trino(settings, programs, ports),
        *ours(settings, ports.spark_ui),
        *(capture(settings, programs) if settings.profile == "full" else ()),
        *(airflow.services(settings) if settings.profile == "full" else ()),
    ]


def ours(settings: Settings, spark_ui: int | None = None) -> list[Service]:
    """Those of the core that run our code; in containers the same. ``spark_ui``: the port of the user interface of the
    speed application's Spark, if it is to have one."""
    interface = {"ANABRANCH_SPEED__UI_PORT": str(spark_ui), "SPARK_LOCAL_IP": "127.0.0.1"} if spark_ui else {}
    return [
        Service(
            "archiver",
            [sys.executable, "-m", "changelog.archive.archiver"],
            url=f"{settings.s3.endpoint}/{settings.s3.archive_bucket}/{settings.s3.archive_prefix}",
            identity="archiver",
            restarts_on_78=False,
        ),
        Service(
            "derive",
            [sys.executable, "-m", "changelog.derive"],
            url=f"kafka://{settings.kafka.bootstrap}/latest.*,patch.*",
            identity="derive",
            restarts_on_78=False,
        ),
        Service(
            "speed",
            [sys.executable, "-m", "speed.app"],
            environment=interface,
            url=f"http://127.0.0.1:{spark_ui}" if spark_ui else "",
            identity="speed",
            stop_seconds=30,
            restarts_on_78=False,
        ),
        Service(
            "commands",
            [sys.executable, "-m", "changelog.commands"],
            url=f"kafka://{settings.kafka.bootstrap}/{OUTCOMES}",
            identity="commands",
            stop_seconds=30,
            restarts_on_78=False,
        ),
    ]


def capture(settings: Settings, programs: Programs) -> list[Service]:
    """Change data capture: Kafka Connect, and what maps its stream to the changelog."""
    return [connect.service(acting_as(settings, "connect"), programs), mapper(settings)]


def mapper(settings: Settings) -> Service:
    """What maps the captured stream to the changelog."""
    url = f"kafka://{settings.kafka.bootstrap}/{TOPIC}"
    command = [sys.executable, "-m", "changelog.sources.cdc"]
    return Service("cdc", command, url=url, identity="cdc", restarts_on_78=False)


def data(settings: Settings, name: str) -> Path:
    """Where a service keeps its data."""
    return settings.home / "data" / name


def here(port: int, directory: Path) -> Node:
    """A server on this machine's loopback."""
    return Node("127.0.0.1", "127.0.0.1", port, directory)


def as_other_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root. As root it runs as another user, with one capability left: to enter private
    directories, so that home and cache may be anywhere. (Without the secure bit, access() would ignore it.)"""
    if os.geteuid() != 0:
        return command
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--securebits=+no_setuid_fixup"]
    left = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--bounding-set=-all,+dac_override"]
    return ["setpriv", *user, *left, *command]


def postgres(settings: Settings, programs: Programs, ports: Ports) -> Service:
    options = postgres_options(settings, here(ports.postgres, data(settings, "postgres")), sockets="")
    flags = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
    command = [str(programs.postgres / "bin" / "postgres"), "-D", str(data(settings, "postgres")), *flags]
    url = f"postgresql://127.0.0.1:{ports.postgres}"
    return Service("postgres", as_other_user(command), url=url, stop_signal="INT")


def kafka(settings: Settings, programs: Programs, ports: Ports) -> Service:
    config = settings.home / "config" / "kafka"
    identity = config / "cluster-id"
    if not identity.exists():
        write_private(identity, str(uuid.uuid4()))
    node = here(ports.kafka, data(settings, "kafka"))
    server = kafka_properties(settings, node, ports.kafka_controller, number=1, voters={1: node.host})
    write_private(config / "server.properties", properties(server))
    write_private(config / "format.arguments", kafka_format(settings))
    write_private(config / "log4j2.properties", KAFKA_LOG)
    command = [*kafka_java(settings, programs), "kafka.Kafka", str(config / "server.properties")]
    return Service("kafka", command, url=f"kafka://127.0.0.1:{ports.kafka}", stop_seconds=30)


def kafka_java(settings: Settings, programs: Programs) -> list[str]:
    """The Java command line of Kafka's programs, up to the class."""
    flags = kafka_flags(settings.home / "config" / "kafka" / "log4j2.properties")
    return [str(programs.java), *flags, "-cp", f"{programs.kafka_jars}/*"]


def minio(settings: Settings, programs: Programs, ports: Ports) -> Service:
    return Service(
        "minio",
        [
            str(programs.minio),
            "server",
            str(data(settings, "minio")),
            f"--address=127.0.0.1:{ports.minio}",
            f"--console-address=127.0.0.1:{ports.minio_console}",
        ],
        environment={
            **minio_environment(settings),
            "MINIO_ROOT_PASSWORD": settings.s3.secret_key.get_secret_value(),
        },
        url=f"http://127.0.0.1:{ports.minio_console}",
    )


def trino(settings: Settings, programs: Programs, ports: Ports) -> Service:
    config = settings.home / "config" / "trino"
    node = here(ports.trino_inside, data(settings, "trino"))
    outside = Outside(ports.trino, certificate_file(settings.home).with_name("server.pem"), config)
    for name, text in trino_files(settings, node, programs.trino / "plugin", config / "catalog", outside).items():
        write_private(config / name, text)
    flags = [
        *(f"-D{key}={value}" for key, value in trino_node(node, "local", "local").items()),
        f"-Dconfig={config / 'config.properties'}",
        f"-Dlog.levels-file={config / 'log.properties'}",
        *trino_flags(settings),
    ]
    command = [str(programs.java), *flags, "-cp", f"{programs.trino}/lib/*", "io.trino.server.TrinoServer"]
    login = ("engineer", settings.identities["engineer"])
    return Service("trino", command, url=f"https://127.0.0.1:{ports.trino}/ui/", login=login)


def environment(settings: Settings, service: Service) -> dict[str, str]:
    """What a service finds in its environment beside what ``up`` was given."""
    known = service.identity in settings.identities  # in a container it has no other settings than its own
    mine = {"ANABRANCH_SETTINGS": str(identity_file(settings, service.identity))} if known else {}
    return {
        "ANABRANCH_HOME": str(settings.home),
        **mine,
        "ANABRANCH_SERVICE": service.name,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **service.environment,
    }
