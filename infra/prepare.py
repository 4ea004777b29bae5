"""What has to be there before a service starts, or right after: data directories, databases, buckets, topics."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from changelog.archive.store import s3_client
from changelog.commands.schema import command_topics
from changelog.derived import BOUNDED, derived_topics
from changelog.sources.cdc.database import create_shop
from changelog.sources.cdc.database import prepare as prepare_capture
from changelog.sources.cdc.mapper import BAD_TOPIC
from changelog.sources.cdc.mapping import TABLES
from changelog.sources.cdc.stream import ensure_topic
from changelog.topics import ensure_topics
from infra import grants
from infra.artifacts.install import Programs
from infra.home import write_private
from infra.readiness import superuser
from infra.services import NOBODY, as_other_user, data, kafka_java
from runtime.errors import PreflightError
from runtime.settings import Database, Settings
from speed.alerts import alert_topic
from views.matching import matching
from views.registry import all_views


def data_directories(settings: Settings, programs: Programs) -> None:
    """Make the data directories of PostgreSQL and Kafka. What is there stays."""
    _postgres(settings, programs)
    _kafka(settings, programs)
    data(settings, "minio").mkdir(parents=True, exist_ok=True)
    data(settings, "trino").mkdir(parents=True, exist_ok=True)


def _postgres(settings: Settings, programs: Programs) -> None:
    directory = data(settings, "postgres")
    if (directory / "PG_VERSION").exists() and (directory / "made").exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    password = settings.home / "run" / "postgres-password"
    write_private(password, settings.postgres_password.get_secret_value())
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
        os.chown(password, NOBODY, NOBODY)
    flags = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C"]
    _run(as_other_user([str(programs.postgres / "bin" / "initdb"), "-D", str(directory), *flags]))
    password.unlink()
    rules = directory / "pg_hba.conf"  # nobody copies the whole cluster: whoever captures the shop may replicate
    rules.write_text(
        "".join(line for line in rules.read_text().splitlines(True) if line.split()[1:2] != ["replication"])
    )
    (directory / "made").touch()


def _kafka(settings: Settings, programs: Programs) -> None:
    directory = data(settings, "kafka")
    if (directory / "meta.properties").exists():
        return
    config = settings.home / "config" / "kafka"
    identity = (config / "cluster-id").read_text()
    storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", identity]
    more = f"@{config / 'format.arguments'}"  # a secret, which no process list shows
    _run([*kafka_java(settings, programs), *storage, "-c", str(config / "server.properties"), more])


def databases(settings: Settings) -> None:
    """Create the roles and databases of the catalog, of operations, of the shop and of Airflow, each for its owner, the
    role that captures the shop's changes, and the roles of the other identities."""
    wanted = [
        settings.catalog,
        settings.ops,
        settings.shop,
        *([settings.airflow.database] if settings.profile == "full" else []),
    ]
    with psycopg.connect(superuser(settings), autocommit=True) as connection:
        for database in wanted:
            _database(connection, database)
        capturing = settings.cdc.database
        grants.role(connection, capturing.user, capturing.password, "LOGIN REPLICATION")
        user, name = sql.Identifier(capturing.user), sql.Identifier(capturing.name)
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, user))
    grants.databases(settings, superuser(settings))


def _database(connection: psycopg.Connection[Any], database: Database) -> None:
    grants.role(connection, database.user, database.password)
    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database.name,)).fetchone():
        name, role = sql.Identifier(database.name), sql.Identifier(database.user)
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, role))
        connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(name))


def shop(settings: Settings) -> None:
    """Create the shop's tables, what the role that captures their changes needs, and the topics of capture. What is
    there stays."""
    with psycopg.connect(settings.shop.dsn, autocommit=True) as connection:
        create_shop(connection)
    with psycopg.connect(superuser(settings, settings.cdc.database.name), autocommit=True) as connection:
        prepare_capture(connection, settings, TABLES)
    grants.shop(settings)
    ensure_topic(settings)
    ensure_topics(settings, (), {BAD_TOPIC: {"cleanup.policy": "compact", **BOUNDED}})


def buckets(settings: Settings) -> None:
    """Create the buckets of archive and lake, and the users of the object store."""
    client = s3_client(settings.s3)
    there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
    for bucket in {settings.s3.archive_bucket, settings.s3.lake_bucket} - there:
        client.create_bucket(Bucket=bucket)
    grants.objects(settings)


def topics(settings: Settings) -> None:
    """Create the topics of the changelog, of what is derived from it, of the alerts, and of commands."""
    alerts = [alert_topic(view) for view in matching(all_views()) if view.alert]
    ensure_topics(settings, alerts, {**derived_topics(settings), **command_topics(settings)})


def _run(command: list[str], directory: Path = Path("/")) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    if result.returncode:
        raise PreflightError(f"{command[0]} failed:\n{result.stdout[-1500:]}\n{result.stderr[-1500:]}")
