"""Airflow on the platform: batch_views moves the boundary, and neither a kill nor a repetition changes the result."""

import json
import os
import signal
import time
from contextlib import suppress

import httpx
import psutil
import psycopg
import pytest

from changelog.positions import Vector, covers
from infra import supervise
from infra.airflow import COMPONENTS, url
from infra.airflow_api import AirflowApi
from infra.readiness import await_ready
from runtime import ops
from runtime.settings import Settings
from serving.publication import release, rollback
from serving.published import current, history
from tests.services import assert_exact, feed, shop, status, until
from tests.services import run as run_command
from tests.shop import await_equal, meddle, tables
from views.registry import view_names

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

DAG, SECONDS = "batch_views", 400


def boundary(settings: Settings) -> tuple[int, Vector]:
    """Number of the newest publication, and up to where the batch side reaches."""
    with ops.connect(settings) as connection:
        served = current(connection)
    return max(view.publication for view in served), served[0].vector


def clear(airflow: AirflowApi, dag: str, run: str, task: str) -> None:
    """Let a task and what follows it run again."""
    body = {"dag_run_id": run, "task_ids": [task], "include_downstream": True, "only_failed": False,
            "reset_dag_runs": True, "dry_run": False}  # fmt: skip
    airflow.request("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)


def task_processes() -> list[psutil.Process]:
    """The processes in which tasks run: children of the scheduler's workers."""
    workers = psutil.Process(status()["airflow-scheduler"]["pid"]).children()
    return [task for worker in workers for task in worker.children()]


def processes(settings: Settings, text: str) -> list[psutil.Process]:
    """What the scheduler has started, by a word of the command line."""
    found = []
    for process in supervise.leftovers(settings, "airflow-scheduler"):
        with suppress(psutil.NoSuchProcess):
            if text in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_every_component_is_healthy_and_the_dag_is_active(airflow: AirflowApi, platform: Settings) -> None:
    health = airflow.get("monitor/health")
    assert {name: part["status"] for name, part in health.items()} == dict.fromkeys(
        ("metadatabase", "scheduler", "triggerer", "dag_processor"), "healthy"
    )
    assert airflow.get("importErrors")["import_errors"] == []
    assert airflow.get(f"dags/{DAG}")["is_paused"] is False
    assert httpx.get(f"{url(platform)}/api/v2/dags").status_code == 401


def test_no_process_shows_a_secret_in_its_arguments(airflow: AirflowApi, platform: Settings) -> None:
    known = platform.airflow
    secrets = [known.password, known.fernet_key, known.jwt_secret, known.api_secret_key, known.database.password]
    shown = [" ".join(process.cmdline()) for process in supervise.leftovers(platform)]
    assert sum("airflow" in line for line in shown) >= len(COMPONENTS)
    assert [line for line in shown if any(secret.get_secret_value() in line for secret in secrets)] == []


def test_a_run_publishes_what_was_archived_and_the_next_one_has_nothing_to_do(
    airflow: AirflowApi, platform: Settings
) -> None:
    feed(platform, shop(seed=301, records=600))
    assert_exact(platform)
    publication, vector = boundary(platform)
    states = airflow.wait(DAG, airflow.trigger(DAG), SECONDS)
    assert set(states.values()) == {"success"}
    after = boundary(platform)
    assert after[0] > publication
    assert after[1] != vector
    assert covers(after[1], vector)
    assert_exact(platform)

    states = airflow.wait(DAG, airflow.trigger(DAG), SECONDS)
    assert states.pop("complain") == "success"
    assert set(states.values()) == {"skipped"}
    assert boundary(platform) == after


@pytest.mark.slow
def test_after_a_rollback_a_run_publishes_nothing_and_is_no_failure(airflow: AirflowApi, platform: Settings) -> None:
    rollback(platform, [])
    try:
        held = boundary(platform)
        feed(platform, shop(seed=302, records=200))
        states = airflow.wait(DAG, airflow.trigger(DAG), SECONDS)
        assert states.pop("publish") == "skipped"
        assert set(states.values()) == {"success"}
        assert boundary(platform) == held
    finally:
        release(platform)
    assert_exact(platform)


@pytest.mark.slow
def test_a_task_that_is_taken_away_and_then_a_scheduler_that_is_killed(airflow: AirflowApi, platform: Settings) -> None:
    """The task's Spark driver ends with it, and it can be run again; meanwhile the scheduler dies, comes back with
    nothing of its earlier life left, and finishes the run."""
    publication, _ = boundary(platform)
    feed(platform, shop(seed=303, records=400))
    run = airflow.trigger(DAG)
    until(lambda: bool(processes(platform, "batch/ingest.py")), 120, "ingest runs")
    path = f"dags/{DAG}/dagRuns/{run}/taskInstances/ingest"
    airflow.request("PATCH", f"/api/v2/{path}", {"new_state": "failed"})
    until(lambda: not processes(platform, "batch/ingest.py"), 60, "its Spark driver ends")
    clear(airflow, DAG, run, "ingest")

    until(lambda: bool(processes(platform, "batch/ingest.py")), 120, "ingest runs again")
    before = processes(platform, "")
    pid = status()["airflow-scheduler"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: status()["airflow-scheduler"]["pid"] not in (pid, None), 60, "it is started again")
    until(lambda: not any(process.is_running() for process in before if not _zombie(process)), 60,
          "nothing of its earlier life is left")  # fmt: skip
    await_ready(platform, "airflow-scheduler", 120)
    assert set(airflow.wait(DAG, run, SECONDS).values()) == {"success"}
    assert boundary(platform)[0] > publication
    assert_exact(platform)


def _zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["airflow-api", "airflow-dag-processor", "airflow-triggerer"])
def test_a_service_of_airflow_that_is_killed_comes_back(airflow: AirflowApi, platform: Settings, name: str) -> None:
    pid = status()[name]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: status()[name]["pid"] not in (pid, None), 60, "it is started again")
    await_ready(platform, name, 120)
    health = airflow.get("monitor/health")
    assert {part["status"] for part in health.values()} == {"healthy"}


@pytest.mark.slow
def test_a_build_and_a_publication_that_are_killed_half_way_are_tried_again(
    airflow: AirflowApi, platform: Settings
) -> None:
    feed(platform, shop(seed=305, records=200))
    before = boundary(platform)
    run = airflow.trigger(DAG)
    with ops.connect(platform) as connection:
        building = "SELECT 1 FROM runs WHERE state = 'building' AND run_id LIKE 'batch_views_%'"
        until(lambda: connection.execute(building).fetchone() is not None, SECONDS, "the build has begun")
        for process in processes(platform, "batch/build.py"):
            process.kill()
        deadline = time.monotonic() + SECONDS
        started = "SELECT publication FROM publications WHERE state = 'started'"
        while (row := connection.execute(started).fetchone()) is None:
            assert time.monotonic() < deadline, "no publication has begun"
        for process in task_processes():
            process.kill()
        left = connection.execute(started).fetchone()
    assert left == row, "it was over before the kill"
    assert set(airflow.wait(DAG, run, SECONDS).values()) == {"success"}
    for task in ("build", "publish"):
        assert airflow.get(f"dags/{DAG}/dagRuns/{run}/taskInstances/{task}")["try_number"] == 2
    assert boundary(platform)[0] == row["publication"] > before[0]
    assert_exact(platform)


@pytest.mark.slow
def test_two_recomputes_at_once_and_each_publishes_what_it_was_asked_for(
    airflow: AirflowApi, platform: Settings
) -> None:
    feed(platform, shop(seed=307, records=200))
    dag = "full_recompute"
    runs = [
        airflow.trigger(dag, views=["traffic"], source="raw objects"),
        airflow.trigger(dag, views=["revenue", "order_latest"], publish="publish if nothing differs"),
    ]
    states = [airflow.wait(dag, run, SECONDS) for run in runs]
    assert [set(tasks.values()) for tasks in states] == [{"success"}, {"success"}]
    assert [airflow.result(dag, run, "publish")["views"] for run in runs] == [["traffic"], ["order_latest", "revenue"]]
    assert_exact(platform)


@pytest.mark.slow
def test_a_recompute_that_only_compares_publishes_nothing(airflow: AirflowApi, platform: Settings) -> None:
    before = boundary(platform)
    run = airflow.trigger("full_recompute", publish="compare only")
    states = airflow.wait("full_recompute", run, SECONDS)
    assert states.pop("publish") == "skipped"
    assert airflow.result("full_recompute", run, "compare") == dict.fromkeys(view_names(), 0)
    assert boundary(platform) == before


def test_a_rollback_through_its_form_is_done_once_however_often_it_is_cleared(
    airflow: AirflowApi, platform: Settings
) -> None:
    with ops.connect(platform) as connection:
        target = next(
            row["publication"] for row in history(connection) if row["view"] == "traffic" and not row["served"]
        )
    run = airflow.trigger("rollback", views=["traffic"], publication=target)
    airflow.wait("rollback", run, SECONDS)
    clear(airflow, "rollback", run, "rollback")
    airflow.wait("rollback", run, SECONDS)
    with ops.connect(platform) as connection:
        served = next(view for view in current(connection) if view.view == "traffic")
        done = connection.execute("SELECT count(*) AS n FROM publications WHERE run_id LIKE 'rollback_%'").fetchone()
    assert served.restores == target
    assert done == {"n": 1}
    assert release(platform)
    assert_exact(platform)


@pytest.mark.slow
def test_history_is_replayed_elsewhere_through_its_form(airflow: AirflowApi, platform: Settings) -> None:
    before = boundary(platform)
    run = airflow.trigger("replay", location="again")
    airflow.wait("replay", run, SECONDS)
    report = airflow.result("replay", run, "report")
    assert report["differing"] == dict.fromkeys(view_names(), 0)
    assert min(report["rows"].values()) > 0
    assert boundary(platform) == before


@pytest.mark.slow
def test_much_drift_is_rebuilt(airflow: AirflowApi, platform: Settings) -> None:
    """More rows than may be mended one by one, and a setting that says: start it."""
    run_command("shop", "--rate", "50", "--seconds", "2", "--seed", "61")
    await_equal(platform)
    some = sorted(row[0] for row in tables(platform)["guest_latest"])[:6]
    assert len(some) > platform.drift.republish_at_most
    meddle(platform, {ref: {"country": "XX"} for ref in some})
    run = airflow.trigger("drift")
    assert set(airflow.wait("drift", run, SECONDS).values()) == {"success"}
    assert airflow.result("drift", run, "compare_and_mend")["guest"]["action"] == "rebuild started"
    assert set(airflow.wait("full_recompute", f"drift__{run}", SECONDS).values()) == {"success"}
    await_equal(platform)
    assert_exact(platform)


@pytest.mark.slow
def test_upkeep_runs_as_dags(airflow: AirflowApi, platform: Settings) -> None:
    """Maintenance, watching, backup, and Airflow's own history: a run is made old, and is forgotten."""
    old, young = airflow.trigger("watch"), airflow.trigger("watch")
    for run in (old, young):
        airflow.wait("watch", run, SECONDS)
    with psycopg.connect(platform.airflow.database.dsn) as metadata:
        metadata.execute("UPDATE dag_run SET start_date = start_date - interval '100 days' WHERE run_id = %s", (old,))
    runs = {dag: airflow.trigger(dag) for dag in ("maintenance", "watch", "drift", "backup", "airflow_cleanup")}
    for dag, run in runs.items():
        assert set(airflow.wait(dag, run, SECONDS).values()) <= {"success", "skipped"}
    assert {one["severity"] for one in airflow.result("drift", runs["drift"], "compare_and_mend").values()} == {"none"}
    assert set(airflow.result("watch", runs["watch"], "look")["lag"]) == {
        "cdc",
        "archiver",
        "derive",
        "speed",
        "ingest",
        "boundary",
    }
    assert airflow.result("backup", runs["backup"], "back_up")["rows"]["ops.publications"] > 0
    remembered = {run["dag_run_id"] for run in airflow.get("dags/watch/dagRuns")["dag_runs"]}
    assert young in remembered
    assert old not in remembered
    run_status = json.loads(run_command("status", "--json"))
    assert run_status["lag"].keys() == {"cdc", "archiver", "derive", "speed", "ingest", "boundary"}
    assert run_status["next_runs"].keys() == {
        "batch_views", "maintenance", "watch", "drift", "backup", "airflow_cleanup",
    }  # fmt: skip
    assert_exact(platform)
