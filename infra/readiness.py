"""Ready means asked and answered. Each check asks the service itself and raises while it has no good answer."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo

from changelog.sources.cdc.connect import login
from infra import airflow, supervise
from infra.home import Ports
from runtime import trino
from runtime.errors import TransientError
from runtime.settings import Settings


def await_ready(settings: Settings, name: str, seconds: float) -> float:
    """Return, after how many seconds, once the service answers.

    Raises TransientError, with the last lines of its log, if it ended for good or does not answer in time.
    """
    check = checks(settings)[name]
    began = time.monotonic()
    failure: Exception | str = "it was not asked yet"
    while time.monotonic() - began < seconds:
        info = supervise.states(settings).get(name, {})
        if info.get("statename") in ("FATAL", "EXITED", "STOPPED", "UNKNOWN"):
            raise TransientError(f"{name} ended ({info.get('description')}):\n{tail(settings, name)}")
        try:
            check()
            return time.monotonic() - began
        except Exception as error:  # whatever a client raises while a server starts; shown below if it stays
            failure = error
        time.sleep(0.2)
    raise TransientError(f"{name} is not ready after {seconds:.0f} s ({failure}):\n{tail(settings, name)}")


def tail(settings: Settings, name: str, lines: int = 15) -> str:
    """The last lines of a service's log, indented."""
    path = supervise.log_path(settings, name)
    text = path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else ["(no log yet)"]
    return "\n".join(f"    {line}" for line in text)


def checks(settings: Settings) -> dict[str, Callable[[], None]]:
    """For each service, a call that returns when it is ready and raises when it is not."""
    ports = Ports(settings.port_base)

    def postgres() -> None:
        with psycopg.connect(superuser(settings), connect_timeout=2) as connection:
            connection.execute("SELECT 1")

    def kafka() -> None:
        AdminClient({**settings.kafka.client(), "log_level": 0}).list_topics(timeout=2)

    def minio() -> None:
        httpx.get(f"{settings.s3.endpoint}/minio/health/ready", timeout=2).raise_for_status()

    def trino_() -> None:
        if httpx.get(f"http://127.0.0.1:{ports.trino_inside}/v1/info", timeout=2).json()["starting"]:
            raise TransientError("starting")
        trino.execute(trino.connect(settings), "SELECT 1")

    def connect() -> None:
        httpx.get(f"{settings.cdc.connect_url}/connectors", auth=login(settings), timeout=5).raise_for_status()

    def heartbeat(name: str) -> Callable[[], None]:
        def check() -> None:
            pid = supervise.states(settings)[name]["pid"]
            with psycopg.connect(settings.ops.dsn, connect_timeout=2) as connection:
                row = connection.execute(
                    "SELECT pid, state FROM services WHERE name = %s AND updated_at > now() - interval '10 s'", (name,)
                ).fetchone()
            if row != (pid, "running"):
                raise TransientError(f"its heartbeat says {row}, its pid is {pid}")

        return check

    def airflow_api() -> None:
        document = httpx.get(f"{airflow.url(settings)}/api/v2/monitor/health", timeout=5).raise_for_status().json()
        if document["metadatabase"]["status"] != "healthy":
            raise TransientError(f"it says {document}")

    def airflow_job(name: str) -> Callable[[], None]:
        def check() -> None:
            started = supervise.states(settings)[name]["start"] + 1  # whole seconds: a heartbeat of an earlier life
            with psycopg.connect(settings.airflow.database.dsn, connect_timeout=2) as connection:
                row = connection.execute(
                    "SELECT count(*) FROM job WHERE job_type = %s AND state = 'running' AND latest_heartbeat > "
                    "to_timestamp(%s)",
                    (airflow.JOBS[name], started),
                ).fetchone()
                if row == (0,):
                    raise TransientError("it has no heartbeat in Airflow's metadata yet")
                if name == "airflow-dag-processor":
                    dags_are_parsed(connection, started)

        return check

    def dags_are_parsed(connection: psycopg.Connection[Any], started: int) -> None:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM dag WHERE last_parsed_time > to_timestamp(%(started)s)) + "
            "(SELECT count(*) FROM import_error WHERE timestamp > to_timestamp(%(started)s))",
            {"started": started},
        ).fetchone()
        if row is None or row[0] < len(airflow.dag_files()):
            raise TransientError("it has not parsed all DAGs yet")

    return {
        "postgres": postgres,
        "kafka": kafka,
        "minio": minio,
        "trino": trino_,
        "archiver": heartbeat("archiver"),
        "derive": heartbeat("derive"),
        "speed": heartbeat("speed"),
        "commands": heartbeat("commands"),
        "connect": connect,
        "cdc": heartbeat("cdc"),
        "airflow-api": airflow_api,
        **{name: airflow_job(name) for name in airflow.JOBS},
    }


def superuser(settings: Settings, database: str = "postgres") -> str:
    """Connection string of PostgreSQL's own superuser."""
    return make_conninfo(settings.ops.dsn, dbname=database, user="postgres",
                         password=settings.postgres_password.get_secret_value())  # fmt: skip
