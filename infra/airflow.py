"""Airflow as services of the local platform: its configuration as data, its processes, its metadata, its Spark.

It runs in our own Python environment (docs/decisions/0013-airflow-in-one-environment.md), so that DAGs are thin calls
of our functions. Secrets are in ``airflow.cfg``, which only its owner may read; no process gets one as an argument.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from infra.home import Ports, write_private
from infra.service import Service
from runtime.errors import TransientError
from runtime.settings import Database, Settings
from runtime.spark_submit import cluster_conf, defaults, is_local, spark_home, submit_conf
from runtime.version import ROOT

COMPONENTS = {
    "airflow-api": ("api-server",),
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dag-processor": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Service → Airflow's command. The logs are read from the disk, so nobody has to serve them."""

STOP_SECONDS = {"airflow-scheduler": 10, "airflow-triggerer": 3}
"""The scheduler waits for its running tasks, the triggerer for its triggers. What is still at work after this is ended,
and begins again after the start."""

ROLES = {"engineer": "user"}
"""What people beside the administrator may do in the interface: look, run DAGs, and clear tasks."""

JOBS = {
    "airflow-scheduler": "SchedulerJob",
    "airflow-dag-processor": "DagProcessorJob",
    "airflow-triggerer": "TriggererJob",
}
"""Service → the job under which it writes its heartbeat into Airflow's metadata."""


def dag_files() -> list[Path]:
    """The files of our DAGs, one DAG each."""
    ignored = {"__init__.py", *(ROOT / "dags" / ".airflowignore").read_text().split()}
    return sorted(path for path in (ROOT / "dags").glob("*.py") if path.name not in ignored)


def home(settings: Settings) -> Path:
    """``AIRFLOW_HOME``."""
    return settings.home / "airflow"


def url(settings: Settings) -> str:
    """Where the interface and the REST API are."""
    return settings.airflow.url or f"http://127.0.0.1:{port(settings)}"


def port(settings: Settings) -> int:
    """On which the API server listens."""
    return settings.airflow.port or Ports(settings.port_base).airflow


def services(settings: Settings) -> list[Service]:
    """Airflow's services. Writes their configuration; a second call writes the same."""
    write_configuration(settings)
    given = environment(settings)
    made = []
    for name, command in COMPONENTS.items():
        health = f"{url(settings)}/api/v2/monitor/health"
        api = name == "airflow-api"
        made.append(
            Service(
                name,
                [sys.executable, "-m", "infra.launch", sys.executable, "-m", "airflow", *command],
                environment=given,
                identity="airflow-api" if api else "batch",
                url=url(settings) if api else health,
                stop_seconds=STOP_SECONDS.get(name, 10),
                login=(settings.airflow.user, settings.airflow.password) if api else None,
            )
        )
    return made


def configuration(settings: Settings) -> dict[str, dict[str, str]]:
    """``airflow.cfg``: section → option → value. What is not here is Airflow's default."""
    airflow, logs = settings.airflow, settings.home / "logs" / "airflow"
    return {
        "core": {
            "dags_folder": str(ROOT / "dags"),
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            "executor": "LocalExecutor",
            "parallelism": "4",  # so many workers are started at once and kept
            "hostname_callable": "socket.gethostname",  # the default asks the DNS
            "simple_auth_manager_users": ",".join(
                [f"{airflow.user}:admin", *(f"{name}:{ROLES[name]}" for name in airflow.people)]
            ),
            "simple_auth_manager_passwords_file": str(home(settings) / "passwords.json"),
            "fernet_key": airflow.fernet_key.get_secret_value(),
            **({"execution_api_server_url": f"{airflow.api_url}/execution/"} if airflow.api_url else {}),
        },
        "database": {
            # the driver is the one that we have, for both of Airflow's engines
            "sql_alchemy_conn": database_url(airflow.database),
            "sql_alchemy_conn_async": database_url(airflow.database),
        },
        "logging": {
            "base_log_folder": str(logs),
            "dag_processor_child_process_log_directory": str(logs / "dag_processor"),
            "colored_console_log": "False",
        },
        "api": {
            "host": airflow.listen,
            "port": str(port(settings)),
            "base_url": url(settings),
            "workers": "1",
            "secret_key": airflow.api_secret_key.get_secret_value(),
        },
        "api_auth": {"jwt_secret": airflow.jwt_secret.get_secret_value()},
        "scheduler": {
            "orphaned_tasks_check_interval": "30",  # how soon a task that died with its scheduler runs again
            "task_instance_heartbeat_timeout": "60",
        },
        "dag_processor": {
            "refresh_interval": "30",  # new files
            "min_file_process_interval": "30",  # changed files
            "parsing_processes": "1",
        },
    }


def database_url(database: Database) -> str:
    """SQLAlchemy's URL of a database, password included."""
    user, password = quote(database.user, safe=""), quote(database.password.get_secret_value(), safe="")
    url = f"postgresql+psycopg://{user}:{password}@{database.host}:{database.port}/{database.name}"
    return f"{url}?{urlencode(database.tls)}" if database.tls else url


def connections(settings: Settings) -> dict[str, str]:
    """Airflow's connections, by id: where its operators find Spark. Everything else DAGs ask our own functions for."""
    return {"spark_default": json.dumps({"conn_type": "spark", "host": settings.spark.master})}


def environment(settings: Settings) -> dict[str, str]:
    """What Airflow's processes, and the tasks they start, find in their environment. No secret."""
    return {
        "AIRFLOW_HOME": str(home(settings)),
        **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in connections(settings).items()},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(spark_directory(settings)),
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_local(settings) else {}),
        "SPT_NOENV": "1",  # Airflow sets titles of processes; /proc/*/environ is to stay, by which they are found
    }


def spark_directory(settings: Settings) -> Path:
    """``SPARK_CONF_DIR`` of the jobs that Airflow submits."""
    return settings.home / "config" / "spark"


SPARK_LOG = {
    "rootLogger.level": "warn",  # the job says so itself, but only once its JVM has filled a screen
    "rootLogger.appenderRef.console.ref": "console",
    "appender.console.type": "Console",
    "appender.console.name": "console",
    "appender.console.target": "SYSTEM_ERR",
    "appender.console.layout.type": "PatternLayout",
    "appender.console.layout.pattern": "%d{ISO8601} %p %c{1}: %m%n%ex",
}
"""``log4j2.properties`` of the jobs that Airflow submits."""


def write_configuration(settings: Settings) -> None:
    """Write ``airflow.cfg``, the password of its user, and what spark-submit reads; each for its owner only."""
    lines = []
    for section, options in configuration(settings).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {value}".replace("%", "%%") for key, value in options.items()]
    write_private(home(settings) / "airflow.cfg", "\n".join(lines) + "\n")
    passwords = {settings.airflow.user: settings.airflow.password.get_secret_value()}
    passwords |= {name: password.get_secret_value() for name, password in settings.airflow.people.items()}
    write_private(home(settings) / "passwords.json", json.dumps(passwords) + "\n")
    conf = submit_conf(settings, settings.batch.driver_memory) | cluster_conf(settings)
    write_private(spark_directory(settings) / "spark-defaults.conf", defaults(conf))
    log = "".join(f"{key}={value}\n" for key, value in SPARK_LOG.items())
    write_private(spark_directory(settings) / "log4j2.properties", log)


def migrate(settings: Settings) -> bool:
    """Bring Airflow's metadata to the installed version. Returns whether there was anything to do.

    The version is noted on the database itself, so that a second call asks one question. Raises TransientError.
    """
    version = importlib.metadata.version("apache-airflow-core")
    with psycopg.connect(settings.airflow.database.dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = current_database()"
        ).fetchone()
        if row == (f"Airflow {version}",):
            return False
        result = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            capture_output=True, text=True, check=False, cwd=settings.home,
            env={**os.environ, **environment(settings), "ANABRANCH_HOME": str(settings.home)},
        )  # fmt: skip
        if result.returncode:
            raise TransientError(f"airflow db migrate failed:\n{result.stdout[-1500:]}\n{result.stderr[-1500:]}")
        connection.execute(
            sql.SQL("COMMENT ON DATABASE {} IS {}").format(
                sql.Identifier(settings.airflow.database.name), sql.Literal(f"Airflow {version}")
            )
        )
    return True
