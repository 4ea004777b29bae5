"""``anabranch init``: secrets, and the configuration of the containers of ``docker-compose.yml``, in one directory.

The configuration comes from the templates of the local platform (``infra/configuration.py``), with the host names and
paths of containers. Our own image renders what it needs by itself when it starts (``infra/container.py``), from
``settings.json`` alone.

The directory is for its owner only (0700), and what is in it is readable for all: a container sees the files that are
mounted into it and nothing else, and runs as a user of its own who could not read them otherwise.
"""

import json
import os
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Any, Literal

from infra.certificates import is_good, make_certificate
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
from infra.home import Ports, choose_base, completed, generated
from infra.identities import IDENTITIES, PEOPLE, acting_as, file_of
from runtime.errors import TerminalError
from runtime.settings import Settings, read
from runtime.spark_submit import cluster_conf, defaults
from runtime.version import ROOT

ARTIFACTS = Path("/opt/anabranch-artifacts")
"""Where our image keeps jars; see ``infra/images/app/Dockerfile``."""

KAFKA_PORT, CONTROLLER_PORT, POSTGRES_PORT, HTTP_PORT, CONNECT_PORT, MINIO_PORT = 9092, 9093, 5432, 8080, 8083, 9000
TRINO_PORT = 8443
CERTIFICATE = Path("/run/secrets/certificate")
"""Where containers find by what to know the query engine."""
TLS, HOSTS = Path("/etc/anabranch/tls.pem"), ("trino", "localhost", "127.0.0.1")
"""The query engine's certificate with its key, and what it is called."""

SECOR_TEMPLATE, ZOOKEEPER = (ROOT / "infra" / "secor" / name for name in ("secor.properties", "zoo.cfg"))


class ComposeProfile(StrEnum):
    """A profile of ``docker-compose.yml``; ``full`` and ``scale`` add to ``core``, each by itself or both."""

    core = "core"
    full = "full"
    scale = "scale"


ArchiverChoice = Literal["secor", "anabranch"]


@dataclass(frozen=True)
class Size:
    """What a set of profiles makes of the parts that come in numbers."""

    brokers: int
    trino_workers: int
    spark_master: str

    @classmethod
    def of(cls, profiles: tuple[ComposeProfile, ...]) -> "Size":
        return cls(3, 2, "spark://spark-master:7077") if "scale" in profiles else cls(1, 0, "local[2]")


def outside_ports(base: int, brokers: int) -> list[int]:
    """The port of this machine's loopback on which each broker is reached."""
    return [Ports(base).kafka + 100 * number for number in range(brokers)]


def remembered(environment: Path) -> tuple[ComposeProfile, ...]:
    """The profiles of the last time, as ``environment`` (a ``.env``) has them; at first core."""
    lines = environment.read_text().splitlines() if environment.exists() else []
    said = next((line.partition("=")[2].split(",") for line in lines if line.startswith("COMPOSE_PROFILES=")), [])
    return tuple(profile for profile in ComposeProfile if profile in said) or (ComposeProfile.core,)


def init(
    directory: Path, environment: Path, profiles: tuple[ComposeProfile, ...], archiver: ArchiverChoice | None = None
) -> Settings:
    """Write everything into ``directory``, and what Compose reads by itself into ``environment`` (a ``.env``).

    A second call renders the same again: secrets and ports stay, and so do lines of ``environment`` that are not ours,
    and our own that were changed there, but for profiles, directory and (if it is given) archiver. Raises TerminalError
    if the number of brokers would be another one: what Kafka keeps was made for the first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    path, size = directory / "settings.json", Size.of(profiles)
    if path.exists():
        written = json.loads(path.read_text())
    else:
        written = generated(Ports(choose_base(lambda base: outside_ports(base, size.brokers))))
    if path.exists() and (was := written["kafka"]["replication_factor"]) != size.brokers:
        raise TerminalError(
            f"{directory} is of an installation with {was} brokers, and {' + '.join(profiles)} has {size.brokers}. A "
            "log is not taken from one to the other: make another directory (--to), and fill its log by replay"
        )
    written.setdefault("spark", {}).setdefault("secret", secrets.token_urlsafe(24))
    full = "full" in profiles
    settings_text = (
        json.dumps(merged(completed(written, directory), addresses(written["port_base"], size, full)), indent=1) + "\n"
    )
    place(path, settings_text)
    settings = read(path)
    for name in IDENTITIES:
        place(directory / "logins" / f"{name}.json", file_of(settings, name))
    if not is_good(directory / "tls" / "certificate.pem", HOSTS):
        public, private = make_certificate(HOSTS)
        place(directory / "tls" / "server.pem", private)
        place(directory / "tls" / "certificate.pem", public)
    for name in PEOPLE:
        place(directory / "outside" / f"{name}.json", file_of(from_outside(settings, directory), name))
    cluster = directory / "kafka" / "cluster-id"
    if not cluster.exists():
        place(cluster, str(uuid.uuid4()))
    for name, text in files(settings, size).items():
        place(directory / name, text)
    ours = variables(settings.port_base, directory, profiles, size)
    if archiver:
        ours["ARCHIVER"] = archiver
    changing = {"ANABRANCH_CONFIG", "COMPOSE_PROFILES", *(["ARCHIVER"] if archiver else [])}
    place(environment, _environment(environment, ours, changing))
    return settings


def from_outside(settings: Settings, directory: Path) -> Settings:
    """The settings of those who query from the machine itself, by the published port."""
    certificate = (directory / "tls" / "certificate.pem").absolute()
    reached = {"host": "127.0.0.1", "port": Ports(settings.port_base).trino, "ca_file": certificate}
    return settings.model_copy(update={"trino": settings.trino.model_copy(update=reached)})


def variables(base: int, directory: Path, profiles: tuple[ComposeProfile, ...], size: Size) -> dict[str, str]:
    """What ``docker-compose.yml`` takes from its environment. No secret."""
    ports = Ports(base)
    outside = outside_ports(base, 3)
    return {
        "ANABRANCH_CONFIG": str(directory.absolute()),
        "ARCHIVER": "anabranch",
        "COMPOSE_PROFILES": ",".join([*profiles, "${ARCHIVER}", *(["scale-${ARCHIVER}"] if size.brokers > 1 else [])]),
        **{f"KAFKA_PORT_{number}": str(port) for number, port in enumerate(outside, 1)},
        "MINIO_CONSOLE_PORT": str(ports.minio_console),
        "TRINO_PORT": str(ports.trino),
        "AIRFLOW_PORT": str(ports.airflow),
    }


def addresses(base: int, size: Size, full: bool) -> dict[str, Any]:
    """The part of the settings that says where things are in containers."""
    database = {"host": "postgres", "port": POSTGRES_PORT}
    return {
        "profile": "full" if full else "core",
        "kafka": {
            "bootstrap": ",".join(f"{broker(number)}:{KAFKA_PORT}" for number in range(1, size.brokers + 1)),
            "replication_factor": size.brokers,
            "min_insync_replicas": max(1, size.brokers - 1),
        },
        "s3": {"endpoint": f"http://minio:{MINIO_PORT}"},
        "trino": {"host": "trino", "port": TRINO_PORT, "ca_file": str(CERTIFICATE)},
        **dict.fromkeys(("catalog", "ops", "shop"), database),
        "cdc": {
            "database": database,
            "connect_url": f"http://connect:{CONNECT_PORT}",
            "connect_listen": "0.0.0.0",
        },
        "spark": {"master": size.spark_master, "jars": str(ARTIFACTS / "spark")},
        "airflow": {
            "database": database,
            "listen": "0.0.0.0",
            "port": HTTP_PORT,
            "url": f"http://127.0.0.1:{Ports(base).airflow}",
            "api_url": f"http://airflow-api:{HTTP_PORT}",
        },
    }


def broker(number: int) -> str:
    """The host name of a broker."""
    return f"kafka-{number}"


def files(settings: Settings, size: Size) -> dict[str, str]:
    """The configuration of every server that is not of our image: path below the directory → text."""
    brokers = {number: broker(number) for number in range(1, size.brokers + 1)}
    outside = outside_ports(settings.port_base, size.brokers)
    kafka = Path("/etc/anabranch/kafka")
    made = {
        "kafka/log4j2.properties": KAFKA_LOG,
        "kafka/java.args": "\n".join(kafka_flags(kafka / "log4j2.properties")) + "\n",
        "kafka/format.arguments": kafka_format(settings),
    }
    for (number, host), port in zip(brokers.items(), outside, strict=True):
        node = Node("0.0.0.0", host, KAFKA_PORT, Path("/var/lib/kafka/data"))
        server = kafka_properties(settings, node, CONTROLLER_PORT, number, brokers, port)
        made[f"kafka/{host}.properties"] = properties(server)
    postgres = Node("0.0.0.0", "postgres", POSTGRES_PORT, Path("/var/lib/postgresql/data"))
    options = postgres_options(settings, postgres, sockets="/var/run/postgresql")
    made["postgres/postgresql.conf"] = "".join(f"{key} = '{value}'\n" for key, value in options.items())
    made["postgres/password"] = settings.postgres_password.get_secret_value()
    made["minio/environment"] = properties(minio_environment(settings))
    made["minio/password"] = settings.s3.secret_key.get_secret_value()
    for name, text in trino(settings, size).items():
        made[f"trino/{name}"] = text
    made["spark/spark-defaults.conf"] = defaults(cluster_conf(settings))
    made["zookeeper/zoo.cfg"] = ZOOKEEPER.read_text()
    made["secor/secor.properties"] = Template(SECOR_TEMPLATE.read_text()).substitute(secor(settings))
    return made


def trino(settings: Settings, size: Size) -> dict[str, str]:
    """``/etc/trino`` of the coordinator and of the workers, as the official image reads it."""
    plugins, catalogs, data = Path("/usr/lib/trino/plugin"), Path("/etc/trino/catalog"), Path("/data/trino")
    coordinator, worker = Node("0.0.0.0", "trino", HTTP_PORT, data), Node("0.0.0.0", "", HTTP_PORT, data)
    outside, uri = Outside(TRINO_PORT, TLS, catalogs.parent), f"http://{coordinator.host}:{coordinator.port}"
    works = not size.trino_workers
    made = {}
    for name, node, server in (
        ("coordinator", coordinator, trino_files(settings, coordinator, plugins, catalogs, outside, works=works)),
        ("worker", worker, trino_files(settings, worker, plugins, catalogs, None, coordinator=uri)),
    ):
        for file, text in server.items():
            made[f"{name}/{file}"] = text
        made[f"{name}/node.properties"] = properties(trino_node(node, "compose"))
        made[f"{name}/jvm.config"] = "\n".join(trino_flags(settings)) + "\n"
    return made


def secor(settings: Settings) -> dict[str, str]:
    """What Secor's properties leave open. One seed broker is enough to find the others. It is the archiver."""
    settings = acting_as(settings, "archiver")
    host, _, port = settings.kafka.bootstrap.partition(",")[0].partition(":")
    return {
        "group": settings.archiver.group,
        "broker_host": host,
        "broker_port": port,
        "protocol": settings.kafka.java()["security.protocol"],
        "login": settings.kafka.java()["sasl.jaas.config"],
        "endpoint": settings.s3.endpoint,
        "access_key": settings.s3.access_key,
        "secret_key": settings.s3.secret_key.get_secret_value(),
        "bucket": settings.s3.archive_bucket,
        "prefix": settings.s3.archive_prefix,
        "max_bytes": str(settings.archiver.max_bytes),
        "max_age_seconds": str(max(1, round(settings.archiver.max_age_seconds))),
    }


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``one`` with what ``other`` says, section by section."""
    both = dict(one)
    for key, value in other.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, Mapping) else value
    return both


def place(path: Path, text: str) -> None:
    """Write a file that everybody may read who can enter its directory, in one step. Directories that it makes can be
    entered by everybody, whatever the umask: they are mounted."""
    for directory in [one for one in reversed(path.parents) if not one.exists()]:
        directory.mkdir()
        directory.chmod(0o755)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(text)
    scratch.chmod(0o644)
    scratch.rename(path)


def _environment(path: Path, ours: dict[str, str], changing: set[str]) -> str:
    lines = path.read_text().splitlines() if path.exists() else ["# written by anabranch init; yours to add to"]
    kept, missing = [], dict(ours)
    for line in lines:
        name = line.partition("=")[0].strip()
        value = missing.pop(name, None)
        kept.append(f"{name}={value}" if value is not None and name in changing else line)
    return "\n".join([*kept, *(f"{name}={value}" for name, value in missing.items())]) + "\n"
