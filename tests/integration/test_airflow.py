"""Airflow on the platform: batch_views moves the boundary, and neither a kill nor a repetition changes the result."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from changelog.positions import Vector, covers
from infra import platform as local_platform
from infra import supervise
from infra.airflow import COMPONENTS
from infra.readiness import await_ready
from runtime import ops
from runtime.settings import Settings
from serving.publication import current, release, rollback
from tests.services import assert_exact, feed, shop, status, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

DAG = "batch_views"


class Airflow:
    """The REST API, as the user of ``anabranch status``."""

    def __init__(self) -> None:
        service = status()["airflow-api"]
        self.client = httpx.Client(base_url=service["url"], timeout=30)
        login = {"username": service["user"], "password": service["password"]}
        token = self.client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
        self.client.headers["Authorization"] = f"Bearer {token}"

    def get(self, path: str) -> Any:
        return self.client.get(f"/api/v2/{path}").raise_for_status().json()

    def trigger(self, dag: str = DAG) -> str:
        """Start a run. Returns its id."""
        answer = self.client.post(f"/api/v2/dags/{dag}/dagRuns", json={"logical_date": None}).raise_for_status()
        return str(answer.json()["dag_run_id"])

    def states(self, run: str) -> dict[str, str]:
        found = self.get(f"dags/{DAG}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in found}

    def finish(self, run: str, seconds: float = 400) -> dict[str, str]:
        """Await the end of a run, which has to be a success. Returns the states of its tasks."""

        def ended() -> bool:
            return self.get(f"dags/{DAG}/dagRuns/{run}")["state"] in ("success", "failed")

        until(ended, seconds, f"{run} ends: {self.states(run)}")
        states = self.states(run)
        assert self.get(f"dags/{DAG}/dagRuns/{run}")["state"] == "success", states
        return states


@pytest.fixture(scope="module")
def airflow(platform: Settings) -> Iterator[Airflow]:
    """The platform of the other tests with profile full, and core again afterwards."""
    lines: list[str] = []
    local_platform.up(lines.append, "full")
    try:
        yield Airflow()
    finally:
        local_platform.up(lines.append, "core")
        print("\n".join(lines))
    assert [name for name in status() if name in COMPONENTS] == []
    assert [process for name in COMPONENTS for process in supervise.leftovers(platform, name)] == []


def boundary(settings: Settings) -> tuple[int, Vector]:
    """Number of the newest publication, and up to where the batch side reaches."""
    with ops.connect(settings) as connection:
        served = current(connection)
    return max(view.publication for view in served), served[0].vector


def processes(settings: Settings, text: str) -> list[psutil.Process]:
    """What the scheduler has started, by a word of the command line."""
    found = supervise.leftovers(settings, "airflow-scheduler")
    return [process for process in found if text in " ".join(process.cmdline())]


def test_every_component_is_healthy_and_the_dag_is_active(airflow: Airflow) -> None:
    health = airflow.get("monitor/health")
    assert {name: part["status"] for name, part in health.items()} == dict.fromkeys(
        ("metadatabase", "scheduler", "triggerer", "dag_processor"), "healthy"
    )
    assert airflow.get("importErrors")["import_errors"] == []
    assert airflow.get(f"dags/{DAG}")["is_paused"] is False
    assert httpx.get(f"{airflow.client.base_url}/api/v2/dags").status_code == 401


def test_no_process_shows_a_secret_in_its_arguments(airflow: Airflow, platform: Settings) -> None:
    known = platform.airflow
    secrets = [known.password, known.fernet_key, known.jwt_secret, known.api_secret_key, known.database.password]
    shown = [" ".join(process.cmdline()) for process in supervise.leftovers(platform)]
    assert sum("airflow" in line for line in shown) >= len(COMPONENTS)
    assert [line for line in shown if any(secret.get_secret_value() in line for secret in secrets)] == []


def test_a_run_publishes_what_was_archived_and_the_next_one_has_nothing_to_do(
    airflow: Airflow, platform: Settings
) -> None:
    feed(platform, shop(seed=301, records=600))
    assert_exact(platform)
    publication, vector = boundary(platform)
    states = airflow.finish(airflow.trigger())
    assert set(states.values()) == {"success"}
    after = boundary(platform)
    assert after[0] > publication
    assert after[1] != vector
    assert covers(after[1], vector)
    assert_exact(platform)

    states = airflow.finish(airflow.trigger())
    assert set(states.values()) == {"skipped"}
    assert boundary(platform) == after


def test_after_a_rollback_a_run_publishes_nothing_and_is_no_failure(airflow: Airflow, platform: Settings) -> None:
    rollback(platform, [])
    try:
        held = boundary(platform)
        feed(platform, shop(seed=302, records=200))
        states = airflow.finish(airflow.trigger())
        assert states.pop("publish") == "skipped"
        assert set(states.values()) == {"success"}
        assert boundary(platform) == held
    finally:
        release(platform)
    assert_exact(platform)


def test_a_task_that_is_taken_away_ends_its_spark_driver_and_can_be_run_again(
    airflow: Airflow, platform: Settings
) -> None:
    feed(platform, shop(seed=303, records=200))
    run = airflow.trigger()
    until(lambda: bool(processes(platform, "batch/ingest.py")), 120, "ingest runs")
    path = f"dags/{DAG}/dagRuns/{run}/taskInstances/ingest"
    airflow.client.patch(f"/api/v2/{path}", json={"new_state": "failed"}).raise_for_status()
    until(lambda: not processes(platform, "batch/ingest.py"), 60, "its Spark driver ends")
    cleared = airflow.client.post(
        f"/api/v2/dags/{DAG}/clearTaskInstances",
        json={"dag_run_id": run, "task_ids": ["ingest"], "include_downstream": True, "only_failed": False,
              "reset_dag_runs": True, "dry_run": False},
    )  # fmt: skip
    cleared.raise_for_status()
    assert set(airflow.finish(run).values()) == {"success"}
    assert_exact(platform)


def test_a_scheduler_that_is_killed_while_a_task_runs_comes_back_and_finishes_the_run(
    airflow: Airflow, platform: Settings
) -> None:
    publication, _ = boundary(platform)
    feed(platform, shop(seed=304, records=200))
    run = airflow.trigger()
    until(lambda: bool(processes(platform, "batch/ingest.py")), 120, "ingest runs")
    before = processes(platform, "")
    pid = status()["airflow-scheduler"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: status()["airflow-scheduler"]["pid"] not in (pid, None), 60, "it is started again")
    until(lambda: not any(process.is_running() for process in before if not _zombie(process)), 60,
          "nothing of its earlier life is left")  # fmt: skip
    await_ready(platform, "airflow-scheduler", 120)
    assert set(airflow.finish(run).values()) == {"success"}
    assert boundary(platform)[0] > publication
    assert_exact(platform)


def _zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("name", ["airflow-api", "airflow-dag-processor", "airflow-triggerer"])
def test_a_service_of_airflow_that_is_killed_comes_back(airflow: Airflow, platform: Settings, name: str) -> None:
    pid = status()[name]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: status()[name]["pid"] not in (pid, None), 60, "it is started again")
    await_ready(platform, name, 120)
    health = airflow.get("monitor/health")
    assert {part["status"] for part in health.values()} == {"healthy"}
