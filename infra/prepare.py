"""What has to be there before a service starts, or right after: data directories, databases, buckets, topics."""

import os
import shutil
import subprocess
from pathlib import Path

import boto3
import psycopg
from botocore.config import Config
from psycopg import sql

from changelog.topics import ensure_topics
from infra.artifacts.install import Programs
from infra.home import write_private
from infra.readiness import superuser
from infra.services import NOBODY, as_other_user, data, kafka_java
from runtime.errors import PreflightError
from runtime.settings import Settings
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
    (directory / "made").touch()


def _kafka(settings: Settings, programs: Programs) -> None:
    directory = data(settings, "kafka")
    if (directory / "meta.properties").exists():
        return
    config = settings.home / "config" / "kafka"
    identity = (config / "cluster-id").read_text()
    storage = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", identity]
    _run([*kafka_java(settings, programs), *storage, "-c", str(config / "server.properties")])


def databases(settings: Settings) -> None:
    """Create the roles and databases of the catalog, of operations and of Airflow, each for its owner alone."""
    wanted = [settings.catalog, settings.ops, *([settings.airflow.database] if settings.profile == "full" else [])]
    with psycopg.connect(superuser(settings), autocommit=True) as connection:
        for database in wanted:
            role, password = sql.Identifier(database.user), sql.Literal(database.password.get_secret_value())
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (database.user,)).fetchone():
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password))
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database.name,)).fetchone():
                name = sql.Identifier(database.name)
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, role))
                connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(name))


def buckets(settings: Settings) -> None:
    """Create the buckets of archive and lake."""
    client = boto3.client(
        "s3",
        endpoint_url=settings.s3.endpoint,
        region_name=settings.s3.region,
        aws_access_key_id=settings.s3.access_key,
        aws_secret_access_key=settings.s3.secret_key.get_secret_value(),
        config=Config(s3={"addressing_style": "path"}),
    )
    there = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
    for bucket in {settings.s3.archive_bucket, settings.s3.lake_bucket} - there:
        client.create_bucket(Bucket=bucket)


def topics(settings: Settings) -> None:
    """Create the topics of the changelog and of the alerts."""
    ensure_topics(settings, [alert_topic(view) for view in matching(all_views()) if view.alert])


def _run(command: list[str], directory: Path = Path("/")) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    if result.returncode:
        raise PreflightError(f"{command[0]} failed:\n{result.stdout[-1500:]}\n{result.stderr[-1500:]}")
