"""Configuration of the servers as data: one source for the local platform (``infra/services.py``) and for containers
(``infra/compose.py``). Where the two differ, in hosts, ports and paths, there is a parameter."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.settings import Database, Settings


@dataclass(frozen=True)
class Node:
    """Where a server runs: the interface and port on which it listens, the host name under which others reach it, and
    the directory of its data."""

    listen: str
    host: str
    port: int
    data: Path


CONSOLE_LOG = (
    "appender.out.type=Console\nappender.out.name=out\n"
    "appender.out.layout.type=PatternLayout\nappender.out.layout.pattern=%d{ISO8601} %p %c{1} %m%n\n"
)
KAFKA_LOG = "rootLogger.level=WARN\nrootLogger.appenderRef.out.ref=out\n" + CONSOLE_LOG
"""``log4j2.properties`` of a broker."""


def properties(values: Mapping[str, str]) -> str:
    """A Java properties file."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def postgres_options(settings: Settings, node: Node, sockets: str) -> dict[str, str]:
    """Options of PostgreSQL. ``sockets``: the directory of its Unix socket, or empty for none."""
    return {
        "listen_addresses": node.listen,
        "port": str(node.port),
        "unix_socket_directories": sockets,
        "wal_level": "logical",
        "max_slot_wal_keep_size": f"{settings.cdc.max_slot_wal_mb}MB",
        "shared_buffers": "64MB",
        "max_connections": "100",
        "log_timezone": "UTC",
        "timezone": "UTC",
    }


def kafka_properties(
    settings: Settings, node: Node, controller: int, number: int, voters: Mapping[int, str], outside: int | None = None
) -> dict[str, str]:
    """``server.properties`` of broker ``number``, which is a controller too, on port ``controller`` as all are.

    ``voters``: number → host of all brokers. ``outside``: a further port, for clients on the machine itself, who reach
    the broker on its loopback.
    """
    kafka = settings.kafka
    listeners = {"PLAINTEXT": (node.listen, node.port, node.host)}
    if outside:
        listeners["OUTSIDE"] = (node.listen, outside, "127.0.0.1")
    listens = [f"{name}://{listen}:{port}" for name, (listen, port, _) in listeners.items()]
    advertised = [f"{name}://{host}:{port}" for name, (_, port, host) in listeners.items()]
    protocols = {"listener.security.protocol.map": ",".join(f"{one}:PLAINTEXT" for one in (*listeners, "CONTROLLER"))}
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(f"{one}@{host}:{controller}" for one, host in voters.items()),
        "listeners": ",".join([*listens, f"CONTROLLER://{node.listen}:{controller}"]),
        "advertised.listeners": ",".join(advertised),
        "controller.listener.names": "CONTROLLER",
        **(protocols if outside else {}),
        "log.dirs": str(node.data),
        "auto.create.topics.enable": "false",
        "min.insync.replicas": str(kafka.min_insync_replicas),
        "offsets.topic.replication.factor": str(kafka.replication_factor),
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": str(kafka.replication_factor),
        "transaction.state.log.min.isr": str(kafka.min_insync_replicas),
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": str(kafka.replication_factor),
        "share.coordinator.state.topic.min.isr": str(kafka.min_insync_replicas),
        "group.initial.rebalance.delay.ms": "0",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "16777216",
        # what one broker alone has acknowledged has to outlast a power cut; several keep it for each other
        **({"log.flush.interval.messages": "1"} if kafka.replication_factor == 1 else {}),
    }


def kafka_flags(log: Path) -> list[str]:
    """Flags of a broker's JVM. ``log``: where :data:`KAFKA_LOG` is."""
    return ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={log}"]


def minio_environment(settings: Settings) -> dict[str, str]:
    """The environment of the object store, but for its credentials."""
    return {"MINIO_ROOT_USER": settings.s3.access_key, "MINIO_UPDATE": "off", "GOMEMLIMIT": "512MiB"}


def trino_files(
    settings: Settings, node: Node, plugins: Path, catalogs: Path, coordinator: str | None = None, works: bool = True
) -> dict[str, dict[str, str]]:
    """File → properties of a Trino server. ``plugins``, ``catalogs``: where it finds them.

    ``coordinator``: the URI of the coordinator, of a worker; without it this is the coordinator, which does work of its
    own only if ``works``.
    """
    first = {"coordinator": "true", "node-scheduler.include-coordinator": str(works).lower()}
    return {
        "config.properties": {
            **({"coordinator": "false"} if coordinator else first),
            "http-server.http.port": str(node.port),
            "discovery.uri": coordinator or f"http://{node.host}:{node.port}",
            "plugin.dir": str(plugins),
            "catalog.config-dir": str(catalogs),
            "query.max-memory": "1GB",
            "query.max-memory-per-node": "1GB",
            **({} if coordinator else {"query.min-expire-age": "1m", "query.max-history": "50"}),
        },
        "log.properties": {"io.trino": "WARN"},
        "catalog/lake.properties": lake_catalog(settings),
        "catalog/ops.properties": database_catalog(settings.ops),
        "catalog/shop.properties": database_catalog(settings.cdc.database),
    }


def trino_node(node: Node, environment: str, identity: str = "") -> dict[str, str]:
    """``node.properties`` of a Trino server. Without ``identity`` it makes itself one, with ``host`` empty it is
    reached under its address: workers share their configuration."""
    return {
        "node.environment": environment,
        **({"node.id": identity} if identity else {}),
        "node.bind-ip": node.listen,
        **({"node.internal-address": node.host} if node.host else {}),
        "node.data-dir": str(node.data),
    }


def trino_flags(settings: Settings) -> list[str]:
    """Flags of Trino's JVM."""
    return [
        "-Xmx2G",
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:ReservedCodeCacheSize=256M",
        "-Djdk.attach.allowAttachSelf=true",
        "-Dfile.encoding=UTF-8",
        "--enable-native-access=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        *settings.trino.java_options.split(),
    ]


def database_catalog(database: Database) -> dict[str, str]:
    """A catalog of Trino's: one PostgreSQL database."""
    return {
        "connector.name": "postgresql",
        "connection-url": database.jdbc_url,
        "connection-user": database.user,
        "connection-password": database.password.get_secret_value(),
    }


def lake_catalog(settings: Settings) -> dict[str, str]:
    """Trino's catalog ``lake``: the same Iceberg catalog that Spark writes to."""
    return {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url": settings.catalog.jdbc_url,
        "iceberg.jdbc-catalog.connection-user": settings.catalog.user,
        "iceberg.jdbc-catalog.connection-password": settings.catalog.password.get_secret_value(),
        "iceberg.jdbc-catalog.catalog-name": "lake",
        "iceberg.jdbc-catalog.schema-version": "V1",
        "iceberg.jdbc-catalog.default-warehouse-dir": f"s3://{settings.s3.lake_bucket}/warehouse",
        "fs.native-s3.enabled": "true",
        "s3.endpoint": settings.s3.endpoint,
        "s3.region": settings.s3.region,
        "s3.path-style-access": "true",
        "s3.aws-access-key": settings.s3.access_key,
        "s3.aws-secret-key": settings.s3.secret_key.get_secret_value(),
    }
