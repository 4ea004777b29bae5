"""Every DAG keeps the house's policy, and reading them all is cheap."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.version import ROOT

pytestmark = pytest.mark.unit

READ = """
import json, sys, time, warnings
import airflow.sdk
from airflow.dag_processing.dagbag import DagBag

def facts(task):
    policy = task.retry_policy
    return {
        "retries": task.retries, "backoff": task.retry_exponential_backoff, "owner": task.owner,
        "delay": task.retry_delay.total_seconds(), "most": task.max_retry_delay.total_seconds(),
        "timeout": task.execution_timeout.total_seconds() if task.execution_timeout else None,
        "fails": [rule.exception_path for rule in policy.rules if rule.action.value == "fail"] if policy else [],
        "downstream": sorted(task.downstream_task_ids), "type": type(task).__name__,
        "trigger_rule": task.trigger_rule.value,
        "application": getattr(task, "application", None),
        "conf": [getattr(task, name, None) for name in ("conf", "jars", "packages", "_driver_memory")],
        "arguments": getattr(task, "application_args", None),
        "outlets": [asset.name for asset in task.outlets],
    }

began = time.process_time()
bag = DagBag(sys.argv[1])
seconds = time.process_time() - began
dags = {
    dag.dag_id: {
        "doc": dag.doc_md, "tags": sorted(dag.tags), "runs": dag.max_active_runs, "catchup": dag.catchup,
        "paused": dag.is_paused_upon_creation, "schedule": getattr(dag.timetable, "expression", None),
        "file": dag.fileloc.rpartition("/")[2],
        "tasks": {task.task_id: facts(task) for task in dag.tasks},
    }
    for dag in bag.dags.values()
}
with open(sys.argv[2], "w") as file:
    found = {"errors": bag.import_errors, "dags": dags, "seconds": seconds, "modules": sorted(sys.modules)}
    json.dump(found, file, default=str)
"""

HEAVY = {"pyspark", "pandas", "numpy", "pyarrow", "trino", "confluent_kafka", "boto3", "duckdb", "serving", "batch"}


def read_dags(directory: Path, **environment: str) -> Any:
    """What Airflow makes of the DAG files, read in a process of its own without a database."""
    answer = directory / "dags.json"
    done = subprocess.run(
        [sys.executable, "-c", READ, str(ROOT / "dags"), str(answer)],
        capture_output=True, text=True, check=False, cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ANABRANCH_HOME": str(directory), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return read_dags(tmp_path_factory.mktemp("dags"))


@pytest.fixture(scope="module")
def tasks(bag: Any) -> dict[str, Any]:
    return {f"{dag}.{name}": task for dag, facts in bag["dags"].items() for name, task in facts["tasks"].items()}


def test_every_dag_file_is_read_without_error(bag: Any) -> None:
    assert bag["errors"] == {}
    assert "batch_views" in bag["dags"]


def test_a_file_is_one_dag(bag: Any) -> None:
    files = {path.name for path in (ROOT / "dags").glob("*.py")} - {"__init__.py", "policy.py", "triggers.py"}
    assert sorted(dag["file"] for dag in bag["dags"].values()) == sorted(files)
    assert {f"{dag}.py" for dag in bag["dags"]} == files


def test_reading_all_dags_is_quick_and_loads_nothing_heavy(bag: Any) -> None:
    assert bag["seconds"] < 2
    assert {name.partition(".")[0] for name in bag["modules"]} & HEAVY == set()


def test_every_dag_tells_whoever_is_on_call_what_to_do(bag: Any) -> None:
    for name, dag in bag["dags"].items():
        assert dag["doc"] is not None, name
        for task in dag["tasks"]:
            assert f"`{task}`" in dag["doc"], f"{name} says nothing of {task}"
        assert "anabranch" in dag["tags"]


def test_no_past_is_caught_up_and_only_what_stands_beside_what_is_served_may_overlap(bag: Any) -> None:
    assert {dag["catchup"] for dag in bag["dags"].values()} == {False}
    assert {name for name, dag in bag["dags"].items() if dag["runs"] != 1} == {"full_recompute", "erase_guest"}


def test_every_task_retries_with_growing_pauses_unless_that_cannot_help(tasks: dict[str, Any]) -> None:
    for name, task in tasks.items():
        assert task["owner"] == "anabranch", name
        assert task["retries"] > 0, name
        assert task["backoff"] > 1, name
        assert 0 < task["delay"] < task["most"], name
        assert task["fails"] == ["runtime.errors.TerminalError"], name


def test_every_task_has_an_end(tasks: dict[str, Any]) -> None:
    assert [name for name, task in tasks.items() if not task["timeout"]] == []


def test_spark_jobs_are_files_of_ours_and_carry_no_configuration(tasks: dict[str, Any]) -> None:
    jobs = [task for task in tasks.values() if task["type"] == "SparkSubmitOperator"]
    assert {Path(job["application"]).relative_to(ROOT).parts[0] for job in jobs} == {"batch"}
    assert all(Path(job["application"]).is_file() for job in jobs)
    assert all(not any(job["conf"]) for job in jobs)


def test_batch_views_checks_before_it_builds_and_builds_before_it_publishes(bag: Any) -> None:
    dag = bag["dags"]["batch_views"]
    assert (dag["paused"], dag["schedule"]) == (False, "*/15 * * * *")
    order, task = [], "await_archive"
    while task:
        order.append(task)
        (task,) = dag["tasks"][task]["downstream"] or [""]
    assert order == ["await_archive", "ingest", "check_quality", "build", "compare", "publish", "complain"]
    rules = {name: task["trigger_rule"] for name, task in dag["tasks"].items()}
    assert rules.pop("complain") == "none_failed"
    assert set(rules.values()) == {"all_success"}
    assert dag["tasks"]["ingest"]["outlets"] == ["archive"]
    assert dag["tasks"]["publish"]["outlets"] == ["views"]
    assert dag["tasks"]["build"]["arguments"] == ["--run-id", "{{ run_name(dag.dag_id, run_id) }}"]


def test_the_schedule_is_a_setting_and_may_be_none(tmp_path: Path) -> None:
    for schedule, shown in (("5 4 * * *", "5 4 * * *"), ("", None)):
        found = read_dags(tmp_path, ANABRANCH_BATCH__SCHEDULE=schedule)
        assert found["dags"]["batch_views"]["schedule"] == shown


def test_a_name_of_a_run_is_the_same_each_time_and_fits_a_branch() -> None:
    from dags.policy import run_name

    names = {run_name("batch_views", run) for run in ("manual__2026-11-21T09:45:18.6+00:00", "scheduled__2026-11-21")}
    assert names == {"batch_views_manual__2026_11_21T09_45_18_6_00_00", "batch_views_scheduled__2026_11_21"}
