"""What all our DAGs have in common: how they retry, what they wait for, how they run our Spark jobs.

Airflow reads DAG files every half minute, so nothing here or in a DAG file imports more than it must; what a task needs
is imported in the task.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, ExceptionRetryPolicy, Param, RetryAction, RetryRule, XComArg

from runtime.settings import Settings
from runtime.version import ROOT
from views.registry import view_names

TAG = "anabranch"

ARCHIVE = Asset("archive")
"""The tables ``lake.archive.<entity>``, after an ingest."""

VIEWS = Asset("views")
"""The merged views, after a publication."""


def default_args(**changes: Any) -> dict[str, Any]:
    """Arguments for all tasks of a DAG; ``changes`` add or replace some.

    Three retries, after about 30 s, 1 and 2 minutes; none after an error that trying again cannot help: that is what
    the type TerminalError means. Every task is safe to run again, so nothing else needs care.
    """
    return {
        "owner": "anabranch",
        "retries": 3,
        "retry_delay": timedelta(seconds=Settings().batch.retry_seconds),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=10),
        "retry_policy": ExceptionRetryPolicy(
            rules=[RetryRule(exception="runtime.errors.TerminalError", action=RetryAction.FAIL)]
        ),
        "execution_timeout": timedelta(hours=1),
        **changes,
    }


def spark_job(task_id: str, job: str, arguments: Sequence[str] | XComArg = (), **settings: Any) -> SparkSubmitOperator:
    """A task that submits one of our jobs (``batch/ingest.py``) to the Spark of the connection ``spark_default``.

    ``arguments`` are templates, or what another task returns. Memory, class path and Java options come from Spark's own
    configuration there.
    """
    given: Any = arguments if isinstance(arguments, XComArg) else list(arguments)  # its annotation forgets XComArg
    return SparkSubmitOperator(
        task_id=task_id,
        application=str(ROOT / job),
        application_args=given,
        name=f"anabranch-{task_id}",
        **settings,
    )


def views_param(all_chosen: bool, description: str) -> Param:
    """The field of a form in which views are chosen: all of them at first and at least one, or none at first."""
    names = list(view_names())
    return Param(
        names if all_chosen else [],
        type="array",
        items={"type": "string", "enum": names},
        examples=names,
        minItems=1 if all_chosen else 0,
        title="Views",
        description=description,
    )


def run_name(dag_id: str, run_id: str) -> str:
    """The name of a batch run: the same whenever a task of this DAG run is repeated; letters, digits, underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", f"{dag_id}_{run_id}")
