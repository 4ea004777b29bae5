"""The services of the local platform as data: what to run, with what configuration, and how to ask if it is ready."""

import os
import sys
import uuid
from pathlib import Path

from changelog.commands.schema import OUTCOMES
from changelog.sources.cdc.stream import TOPIC
from infra import airflow, connect
from infra.artifacts.install import Programs
from infra.home import Ports, write_private
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
        Service(
            "archiver",
            [sys.executable, "-m", "changelog.archive.archiver"],
            url=f"{settings.s3.endpoint}/{settings.s3.archive_bucket}/{settings.s3.archive_prefix}",
            restarts_on_78=False,
        ),
        Service(
            "derive",
            [sys.executable, "-m", "changelog.derive"],
            url=f"kafka://{settings.kafka.bootstrap}/latest.*,patch.*",
            restarts_on_78=False,
        ),
        Service(
            "speed",
            [sys.executable, "-m", "speed.app"],
            environment={"ANABRANCH_SPEED__UI_PORT": str(ports.spark_ui), "SPARK_LOCAL_IP": "127.0.0.1"},
            url=f"http://127.0.0.1:{ports.spark_ui}",
            stop_seconds=30,
            restarts_on_78=False,
        ),
        Service(
            "commands",
            [sys.executable, "-m", "changelog.commands"],
            url=f"kafka://{settings.kafka.bootstrap}/{OUTCOMES}",
            stop_seconds=30,
            restarts_on_78=False,
        ),
        *(capture(settings, programs) if settings.profile == "full" else ()),
        *(airflow.services(settings) if settings.profile == "full" else ()),
    ]


def capture(settings: Settings, programs: Programs) -> list[Service]:
    """Change data capture: Kafka Connect, and what maps its stream to the changelog."""
    url = f"kafka://{settings.kafka.bootstrap}/{TOPIC}"
    mapper = Service("cdc", [sys.executable, "-m", "changelog.sources.cdc"], url=url, restarts_on_78=False)
    return [connect.service(settings, programs), mapper]


def data(settings: Settings, name: str) -> Path:
    """Where a service keeps its data."""
    return settings.home / "data" / name


def as_other_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root. As root it runs as another user, with one capability left: to enter private
    directories, so that home and cache may be anywhere. (Without the secure bit, access() would ignore it.)"""
    if os.geteuid() != 0:
        return command
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--securebits=+no_setuid_fixup"]
    left = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--bounding-set=-all,+dac_override"]
    return ["setpriv", *user, *left, *command]


def postgres(settings: Settings, programs: Programs, ports: Ports) -> Service:
    options = {
        "listen_addresses": "127.0.0.1",
        "port": str(ports.postgres),
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_slot_wal_keep_size": f"{settings.cdc.max_slot_wal_mb}MB",
        "shared_buffers": "64MB",
        "max_connections": "100",
        "log_timezone": "UTC",
        "timezone": "UTC",
    }
    flags = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
    command = [str(programs.postgres / "bin" / "postgres"), "-D", str(data(settings, "postgres")), *flags]
    url = f"postgresql://127.0.0.1:{ports.postgres}"
    return Service("postgres", as_other_user(command), url=url, stop_signal="INT")


def kafka(settings: Settings, programs: Programs, ports: Ports) -> Service:
    config = settings.home / "config" / "kafka"
    identity = config / "cluster-id"
    if not identity.exists():
        write_private(identity, str(uuid.uuid4()))
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{ports.kafka_controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports.kafka},CONTROLLER://127.0.0.1:{ports.kafka_controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports.kafka}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data(settings, "kafka")),
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
    write_private(config / "server.properties", "".join(f"{key}={value}\n" for key, value in properties.items()))
    write_private(
        config / "log4j2.properties",
        "rootLogger.level=WARN\nrootLogger.appenderRef.out.ref=out\nappender.out.type=Console\nappender.out.name=out\n"
        "appender.out.layout.type=PatternLayout\nappender.out.layout.pattern=%d{ISO8601} %p %c{1} %m%n\n",
    )
    command = [*kafka_java(settings, programs), "kafka.Kafka", str(config / "server.properties")]
    return Service("kafka", command, url=f"kafka://127.0.0.1:{ports.kafka}", stop_seconds=30)


def kafka_java(settings: Settings, programs: Programs) -> list[str]:
    """The Java command line of Kafka's programs, up to the class."""
    log4j = settings.home / "config" / "kafka" / "log4j2.properties"
    flags = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={log4j}"]
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
            "MINIO_ROOT_USER": settings.s3.access_key,
            "MINIO_ROOT_PASSWORD": settings.s3.secret_key.get_secret_value(),
            "MINIO_UPDATE": "off",
            "GOMEMLIMIT": "512MiB",
        },
        url=f"http://127.0.0.1:{ports.minio_console}",
    )


def trino(settings: Settings, programs: Programs, ports: Ports) -> Service:
    config = settings.home / "config" / "trino"
    files = {
        "config.properties": {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(ports.trino),
            "discovery.uri": f"http://127.0.0.1:{ports.trino}",
            "plugin.dir": str(programs.trino / "plugin"),
            "catalog.config-dir": str(config / "catalog"),
            "query.max-memory": "1GB",
            "query.max-memory-per-node": "1GB",
            "query.min-expire-age": "1m",
            "query.max-history": "50",
        },
        "log.properties": {"io.trino": "WARN"},
        "catalog/lake.properties": lake_catalog(settings),
        "catalog/ops.properties": {
            "connector.name": "postgresql",
            "connection-url": settings.ops.jdbc_url,
            "connection-user": settings.ops.user,
            "connection-password": settings.ops.password.get_secret_value(),
        },
        "catalog/shop.properties": {
            "connector.name": "postgresql",
            "connection-url": settings.cdc.database.jdbc_url,
            "connection-user": settings.cdc.database.user,
            "connection-password": settings.cdc.database.password.get_secret_value(),
        },
    }
    for name, properties in files.items():
        write_private(config / name, "".join(f"{key}={value}\n" for key, value in properties.items()))
    flags = [
        "-Xmx2G",
        "-XX:+UseG1GC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:ReservedCodeCacheSize=256M",
        "-Djdk.attach.allowAttachSelf=true",
        "-Dfile.encoding=UTF-8",
        "--enable-native-access=ALL-UNNAMED",
        "--sun-misc-unsafe-memory-access=allow",
        "-Dnode.environment=local",
        "-Dnode.id=local",
        "-Dnode.bind-ip=127.0.0.1",
        "-Dnode.internal-address=127.0.0.1",
        f"-Dnode.data-dir={data(settings, 'trino')}",
        f"-Dconfig={config / 'config.properties'}",
        f"-Dlog.levels-file={config / 'log.properties'}",
        *settings.trino.java_options.split(),
    ]
    command = [str(programs.java), *flags, "-cp", f"{programs.trino}/lib/*", "io.trino.server.TrinoServer"]
    return Service("trino", command, url=f"http://127.0.0.1:{ports.trino}/ui/")


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


def environment(settings: Settings, service: Service) -> dict[str, str]:
    """What a service finds in its environment beside what ``up`` was given."""
    return {
        "ANABRANCH_HOME": str(settings.home),
        "ANABRANCH_SERVICE": service.name,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **service.environment,
    }
