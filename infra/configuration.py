"""Configuration of the servers as data: one source for the local platform (``infra/services.py``) and for containers
(``infra/compose.py``). Where the two differ, in hosts, ports and paths, there is a parameter."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from infra.identities import ADMIN, IDENTITIES, acting_as
from runtime.settings import SCRAM, Database, Settings, jaas
from views.registry import personal_columns


@dataclass(frozen=True)
class Node:
    """Where a server runs: the interface and port on which it listens, the host name under which others reach it, and
    the directory of its data."""

    listen: str
    host: str
    port: int
    data: Path


@dataclass(frozen=True)
class Outside:
    """Where people and programs reach Trino: the port, over TLS; the file with its certificate and key; and where it
    finds the files about who may do what."""

    port: int
    tls: Path
    config: Path


CONSOLE_LOG = (
    "appender.out.type=Console\nappender.out.name=out\n"
    "appender.out.layout.type=PatternLayout\nappender.out.layout.pattern=%d{ISO8601} %p %c{1} %m%n\n"
)
KAFKA_LOG = "rootLogger.level=WARN\nrootLogger.appenderRef.out.ref=out\n" + CONSOLE_LOG
"""``log4j2.properties`` of a broker."""


def properties(values: Mapping[str, str]) -> str:
    """A Java properties file."""
    return "".join(f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in values.items())


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
    the broker on its loopback. Everybody says who they are; brokers among themselves are the administrator, by PLAIN
    where controllers ask, which know no SCRAM. What no ACL allows is refused.
    """
    kafka = settings.kafka
    listeners = {"INSIDE": (node.listen, node.port, node.host)}
    if outside:
        listeners["OUTSIDE"] = (node.listen, outside, "127.0.0.1")
    listens = [f"{name}://{listen}:{port}" for name, (listen, port, _) in listeners.items()]
    advertised = [f"{name}://{host}:{port}" for name, (_, port, host) in listeners.items()]
    scram = jaas("scram.Scram", kafka.user, kafka.password)
    plain = jaas("plain.Plain", kafka.user, kafka.password, **{f"user_{kafka.user}": kafka.password.get_secret_value()})
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(f"{one}@{host}:{controller}" for one, host in voters.items()),
        "listeners": ",".join([*listens, f"CONTROLLER://{node.listen}:{controller}"]),
        "advertised.listeners": ",".join(advertised),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INSIDE",
        "listener.security.protocol.map": ",".join(f"{one}:SASL_PLAINTEXT" for one in (*listeners, "CONTROLLER")),
        "sasl.enabled.mechanisms": SCRAM,
        "sasl.mechanism.inter.broker.protocol": SCRAM,
        "sasl.mechanism.controller.protocol": "PLAIN",
        **{f"listener.name.{one.lower()}.{SCRAM.lower()}.sasl.jaas.config": scram for one in listeners},
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": plain,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{kafka.user}",
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


def kafka_format(settings: Settings) -> str:
    """The arguments by which the log's storage is made with its administrator, a line each: for a file, as no process
    list may show them."""
    kafka = settings.kafka
    return f"--add-scram\n{SCRAM}=[name={kafka.user},password={kafka.password.get_secret_value()}]\n"


def kafka_flags(log: Path) -> list[str]:
    """Flags of a broker's JVM. ``log``: where :data:`KAFKA_LOG` is."""
    return ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={log}"]


def minio_environment(settings: Settings) -> dict[str, str]:
    """The environment of the object store, but for its credentials."""
    return {"MINIO_ROOT_USER": settings.s3.access_key, "MINIO_UPDATE": "off", "GOMEMLIMIT": "512MiB"}


def trino_files(
    settings: Settings,
    node: Node,
    plugins: Path,
    catalogs: Path,
    outside: Outside | None,
    coordinator: str | None = None,
    works: bool = True,
) -> dict[str, str]:
    """File → text of a Trino server. ``plugins``, ``catalogs``: where it finds them. Its nodes speak with each other on
    ``node``, where nobody else is answered.

    ``coordinator``: the URI of the coordinator, of a worker; without it this is the coordinator, which is asked at
    ``outside``, and does work of its own only if ``works``.
    """
    first = {"coordinator": "true", "node-scheduler.include-coordinator": str(works).lower()}
    mine = acting_as(settings, "trino")
    made = {
        "config.properties": {
            **({"coordinator": "false"} if coordinator else first),
            "http-server.http.port": str(node.port),
            "http-server.authentication.allow-insecure-over-http": "false",
            "internal-communication.shared-secret": settings.trino.shared_secret.get_secret_value(),
            **(_tls(outside) if outside else {}),
            "discovery.uri": coordinator or f"http://{node.host}:{node.port}",
            "plugin.dir": str(plugins),
            "catalog.config-dir": str(catalogs),
            "query.max-memory": "1GB",
            "query.max-memory-per-node": "1GB",
            **({} if coordinator else {"query.min-expire-age": "1m", "query.max-history": "50"}),
        },
        "log.properties": {"io.trino": "WARN"},
        "catalog/lake.properties": lake_catalog(mine),
        "catalog/ops.properties": database_catalog(mine.ops),
        "catalog/shop.properties": database_catalog(mine.shop),
    }
    if outside:
        made |= {
            "password-authenticator.properties": {
                "password-authenticator.name": "file",
                "file.password-file": str(outside.config / "passwords"),
            },
            "access-control.properties": {
                "access-control.name": "file",
                "security.config-file": str(outside.config / "rules.json"),
                "security.refresh-period": "10s",
            },
        }
    texts = {name: properties(values) for name, values in made.items()}
    if outside:
        texts |= {"passwords": trino_passwords(settings), "rules.json": json.dumps(trino_rules(), indent=1) + "\n"}
    return texts


def _tls(outside: Outside) -> dict[str, str]:
    return {
        "http-server.https.enabled": "true",
        "http-server.https.port": str(outside.port),
        "http-server.https.keystore.path": str(outside.tls),
        "http-server.authentication.type": "PASSWORD",
        "password-authenticator.config-files": str(outside.config / "password-authenticator.properties"),
        "access-control.config-files": str(outside.config / "access-control.properties"),
    }


ROUNDS = 10_000
"""Of the passwords' hashes. They are generated, and too long to be guessed."""


def trino_passwords(settings: Settings) -> str:
    """Trino's password file: the hash of each user's. The same settings make the same file."""
    users = {ADMIN: settings.trino.password}
    users |= {name: settings.identities[name] for name, one in IDENTITIES.items() if one.queries}
    return "".join(f"{name}:{_hashed(name, secret)}\n" for name, secret in users.items())


def _hashed(name: str, secret: SecretStr) -> str:
    """A password as Trino checks it: rounds, salt and PBKDF2 by HMAC-SHA1, the latter in hexadecimal."""
    password = secret.get_secret_value().encode()
    salt = hashlib.sha256(b"salt of " + name.encode() + b"\0" + password).digest()[:16]
    return f"{ROUNDS}:{salt.hex()}:{hashlib.pbkdf2_hmac('sha1', password, salt, ROUNDS, 32).hex()}"


EVERYTHING = ["SELECT", "INSERT", "DELETE", "UPDATE", "OWNERSHIP", "GRANT_SELECT"]


def trino_rules() -> dict[str, Any]:
    """Trino's access rules, the first that fits counts. ``analyst``: the views of ``serving`` that people read, without
    the fields that say who a guest is. ``engineer``: everything, and changes nothing. ``derive``: the archive. What
    nobody is allowed is refused."""
    all_of = f"{ADMIN}|batch"
    return {
        "catalogs": [
            {"user": all_of, "allow": "all"},
            {"user": "engineer", "allow": "read-only"},
            {"user": "derive|analyst", "catalog": "lake|system", "allow": "read-only"},
        ],
        "schemas": [{"user": all_of, "owner": True}, {"owner": False}],
        "tables": [
            {"user": all_of, "privileges": EVERYTHING},
            {"user": "engineer", "privileges": ["SELECT"]},
            {"user": "derive", "catalog": "lake", "schema": "archive", "privileges": ["SELECT"]},
            *(
                {"user": "analyst", "catalog": "lake", "schema": "serving", "table": view, "privileges": ["SELECT"],
                 "columns": [{"name": column, "mask": MASK} for column in columns]}
                for view, columns in personal_columns().items()
            ),
            {"user": "analyst", "catalog": "lake", "schema": "serving", "table": "(?!.*_states$).*",
             "privileges": ["SELECT"]},
            {"user": "analyst|derive", "catalog": "system", "schema": "jdbc", "privileges": ["SELECT"]},
            {"privileges": []},
        ],
        "functions": [
            {"user": all_of, "privileges": ["EXECUTE", "GRANT_EXECUTE"]},
            {"catalog": "system", "schema": "builtin", "privileges": ["EXECUTE"]},
            {"privileges": []},
        ],
        "procedures": [{"user": all_of, "privileges": ["EXECUTE"]}, {"privileges": []}],
        "queries": [{"user": all_of, "allow": ["execute", "kill", "view"]}, {"allow": ["execute"]}],
        "impersonation": [{"original_user": ".*", "new_user": ".*", "allow": False}],
        "system_information": [{"user": all_of, "allow": ["read", "write"]}],
    }  # fmt: skip


MASK = "CAST('(hidden)' AS varchar)"
"""What analysts read of a field that says who a guest is."""


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
