"""The local platform as a whole: up, down, status."""

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from batch.backup import Backup, backup, backups
from batch.backup import restore as restore_databases
from changelog.sources.cdc import capture
from infra import airflow, grants, prepare, supervise
from infra.airflow_api import AirflowApi
from infra.artifacts.classes import spark_classes
from infra.artifacts.install import Programs, install
from infra.home import Ports, initialise, is_initialised
from infra.preflight import preflight
from infra.readiness import await_ready, tail
from infra.services import services
from runtime import ops
from runtime.errors import PreflightError, TerminalError, TransientError
from runtime.settings import Profile, Settings, home_directory
from serving.overview import overview
from serving.publication import publish_initial

Say = Callable[[str], None]

READY_SECONDS = {"postgres": 60, "kafka": 90, "minio": 60, "trino": 180, "archiver": 90, "derive": 90,
                 "speed": 180, "commands": 90, "connect": 120, "cdc": 120}  # fmt: skip
SCHEDULED = ("batch_views", "maintenance", "watch", "drift", "backup", "airflow_cleanup")
"""DAGs that run by themselves."""

READY_SECONDS |= dict.fromkeys(airflow.COMPONENTS, 180)


def _is_its_owner() -> None:
    """Raises PreflightError for settings of one identity: they do not hold by what the supervisor knows its owner."""
    if given := os.environ.get("ANABRANCH_SETTINGS"):
        raise PreflightError(
            f"ANABRANCH_SETTINGS is set ({given}): up, down and restore are for a home's owner; unset it"
        )


def up(say: Say, profile: Profile | None = None) -> Settings:
    """Bring the platform up and wait until every service answers and the views are served.

    ``profile`` is remembered; None means the one of the last time, at first core. A second call starts what does not
    run, is quick where everything does, and ends what the profile no longer has. Raises PreflightError,
    TransientError.
    """
    _is_its_owner()
    home = home_directory()
    running = is_initialised() and supervise.is_running(Settings())
    wanted = profile or (Settings().profile if is_initialised() else "core")
    preflight(home, None, wanted)
    programs = install(say)
    settings = initialise(programs, profile, spark_classes(programs.spark_jars, say))
    if not running:
        ended = supervise.end_leftovers(settings)
        if ended:
            say(f"ended {ended} processes that a killed supervisor had left")
        preflight(home, Ports(settings.port_base))
    all_services = services(settings, programs)
    if running:
        supervise.reread(settings, all_services)
    else:
        supervise.write_config(settings, all_services)
        prepare.data_directories(settings, programs)
        supervise.start(settings)
    started = time.monotonic()
    _start(settings, programs, say)
    _forget_services(settings, {service.name for service in all_services})
    if publish_initial(settings).publication or not backups(settings):
        backup(settings)
    say(f"ready after {time.monotonic() - started:.0f} s")
    return settings


def _start(settings: Settings, programs: Programs, say: Say) -> None:
    """Start in order; what does not depend on each other starts together."""

    def ready(name: str) -> None:
        _ready(settings, name, say)

    def start_airflow() -> None:
        if airflow.migrate(settings):
            say("Airflow's metadata is prepared")
        for name in airflow.COMPONENTS:
            supervise.start_service(settings, name)
        for done in [pool.submit(ready, name) for name in airflow.COMPONENTS]:
            done.result()

    for name in ("postgres", "kafka", "minio"):
        supervise.start_service(settings, name)
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(ready, name) for name in ("postgres", "kafka", "minio")]:
            done.result()
        prepare.databases(settings)
        orchestration = pool.submit(start_airflow) if settings.profile == "full" else None
        for name in ("trino",):
            supervise.start_service(settings, name)
        prepare.buckets(settings)
        guard(settings)
        prepare.topics(settings)
        grants.log(settings)
        capturing = pool.submit(start_capture, settings, say) if settings.profile == "full" else None
        for name in ("archiver", "derive", "speed", "commands"):
            supervise.start_service(settings, name)
        for done in [pool.submit(ready, name) for name in ("trino", "archiver", "derive", "speed", "commands")]:
            done.result()
        for more in (capturing, orchestration):
            if more is not None:
                more.result()


def start_capture(settings: Settings, say: Say) -> None:
    """Start change data capture where PostgreSQL, Kafka and the log's topics are there. Raises TransientError."""
    prepare.shop(settings)
    supervise.start_service(settings, "connect")
    _ready(settings, "connect", say)
    capture.ensure(settings, say)
    supervise.start_service(settings, "cdc")
    _ready(settings, "cdc", say)


def _ready(settings: Settings, name: str, say: Say) -> None:
    seconds = await_ready(settings, name, READY_SECONDS[name])
    say(f"{name} is ready ({seconds:.1f} s)")


def _forget_services(settings: Settings, known: set[str]) -> None:
    """Services that the profile no longer has are no longer missed."""
    with ops.connect(settings) as connection:
        connection.execute("DELETE FROM services WHERE NOT name = ANY(%s)", (sorted(known),))


def guard(settings: Settings) -> None:
    """Raise TerminalError where the databases are new and the lake is not: going on would begin another one over it."""
    with psycopg.connect(settings.catalog.dsn) as connection:
        if not connection.execute("SELECT 1 FROM iceberg_tables LIMIT 1").fetchone() and backups(settings):
            raise TerminalError(
                "the databases are empty and there are backups of them in the lake: anabranch down, anabranch restore "
                "(in containers: docs/containers.md)"
            )


def restore(say: Say) -> Backup:
    """Bring up PostgreSQL and the object store alone, restore the databases, and go down again.

    Raises TerminalError if the platform is up or there is no backup.
    """
    _is_its_owner()
    settings = Settings()
    if not is_initialised() or supervise.is_running(settings):
        raise TerminalError("restore needs a platform that is down: anabranch down")
    programs = install(say)
    supervise.write_config(settings, services(settings, programs))
    prepare.data_directories(settings, programs)
    supervise.start(settings)
    try:
        for one in ("postgres", "minio"):
            supervise.start_service(settings, one)
        for one in ("postgres", "minio"):
            await_ready(settings, one, READY_SECONDS[one])
        prepare.databases(settings)
        return restore_databases(settings)
    finally:
        supervise.stop(settings, [["minio", "postgres"]])


def down(say: Say) -> None:
    """End every process of this home and keep its data. A second call finds nothing to do. Raises PreflightError."""
    _is_its_owner()
    if not is_initialised():
        say("nothing has been started here")
        return
    settings = Settings()
    if supervise.is_running(settings):
        core = [
            [name]
            for name in (
                "cdc", "connect", "commands", "speed", "derive", "archiver", "trino", "kafka", "minio", "postgres",
            )
        ]  # fmt: skip
        supervise.stop(settings, [list(airflow.COMPONENTS), *core])
    ended = supervise.end_leftovers(settings)
    say("down; the data stays in " + str(settings.home) + (f" ({ended} leftovers ended)" if ended else ""))


def status() -> dict[str, Any]:
    """``{"home", "profile", "services": [{"name", "pid", "state", "url", "detail"}]}``.

    ``state`` is running, starting, stopped or failed; ``detail`` is what the service last said of itself, or of a
    failed one the end of its log. One that asks who you are has ``user`` and ``password`` as well.
    """
    if not is_initialised():
        raise TerminalError(f"nothing has been started in {home_directory()}: anabranch up")
    settings = Settings()
    programs = install(lambda _: None)
    known = supervise.states(settings)
    beats = _heartbeats(settings)
    listed = []
    for service in services(settings, programs):
        info = known.get(service.name, {})
        state = {"RUNNING": "running", "STARTING": "starting", "BACKOFF": "starting", "FATAL": "failed"}.get(
            info.get("statename", ""), "failed" if info.get("exitstatus") == 78 else "stopped"
        )
        detail: Any = beats.get(service.name)
        if state == "failed":
            detail = tail(settings, service.name)
        listed.append(
            {
                "name": service.name,
                "pid": info.get("pid") or None,
                "state": state,
                "url": service.url,
                "detail": detail,
                **(
                    {"user": service.login[0], "password": service.login[1].get_secret_value()} if service.login else {}
                ),
            }
        )
    return {"home": str(settings.home), "profile": settings.profile, "services": listed}


def situation() -> dict[str, Any]:
    """What :func:`serving.overview.overview` tells, and ``next_runs``: DAG → when its next scheduled run begins.

    Empty where the operations database does not answer; ``next_runs`` is empty without Airflow.
    """
    settings = Settings()
    try:
        with ops.connect(settings) as connection:
            found = overview(connection)
    except TransientError:
        return {}
    found["next_runs"] = {}
    if settings.profile == "full":
        with contextlib.suppress(TransientError, TerminalError):  # away, or a DAG is not read yet
            airflow_api = AirflowApi(settings)
            for dag in SCHEDULED:
                found["next_runs"][dag] = airflow_api.next_run(dag)
    return found


def _heartbeats(settings: Settings) -> dict[str, Any]:
    try:
        with psycopg.connect(settings.ops.dsn, connect_timeout=2) as connection:
            return dict(connection.execute("SELECT name, detail FROM services").fetchall())
    except psycopg.Error:
        return {}
