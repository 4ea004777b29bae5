"""The orchestrator's scheduler and its metadata database die under a run, which ends all the same, and exactly."""

import pytest

from infra.airflow_api import AirflowApi
from infra.readiness import await_ready
from runtime.errors import TransientError
from runtime.settings import Settings
from tests.faults.report import kill
from tests.integration.test_airflow import DAG, SECONDS, boundary, processes
from tests.services import assert_exact, feed, shop, status, until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("job", ["batch/ingest.py", "batch/build.py"])
def test_scheduler_and_metadata_database_are_killed_under_a_run(
    airflow: AirflowApi, platform: Settings, job: str
) -> None:
    """Airflow's scheduler and the database that has its metadata, the catalog and the operations are killed while a
    task of batch_views works; the run ends with success, and every view is exact."""
    publication, _ = boundary(platform)
    feed(platform, shop(seed=700 + len(job), records=300))
    run = airflow.trigger(DAG)
    until(lambda: bool(processes(platform, job)), SECONDS, f"{job} runs")
    for name in ("postgres", "airflow-scheduler"):
        pid = status()[name]["pid"]
        kill(pid)
        until(lambda: status()[name]["pid"] not in (None, pid), 60, "it is started again")  # noqa: B023
    for name in ("postgres", "airflow-api", "airflow-scheduler", "airflow-dag-processor"):
        await_ready(platform, name, 180)

    def ended() -> bool:
        try:
            return set(airflow.tasks(DAG, run).values()) == {"success"}
        except TransientError:  # the interface has not found the database again
            return False

    until(ended, SECONDS, "the run ends with success")
    assert boundary(platform)[0] > publication
    assert_exact(platform)
