"""
### drift: the shop's database against the merged views

Compares both row by row, in one query, and looks again at what differs once the views have come past the first look: so
what is on its way is no drift. A few rows (minor) are sent through the stream again, and what differs from the log is
written. Many rows, or views that are not what the log says (major), need everything read and folded anew: that is
proposed by an alert (`watch` tells it, the remedy with it), or with the setting `drift.rebuild: start` started here.
What was found is in the table `ops.public.drift`. By hand: `anabranch drift`.

When a task fails:

- `compare_and_mend`: capture is late or does not run, or the shop's database or Trino does not answer (`anabranch
  status`). Nothing was noted then. Run again, it compares anew.
- `is_to_be_rebuilt` skips the rest unless something is major and the setting says start.
- `reread` has the database read whole, and waits: a connector that does not run holds it up (`anabranch logs connect`).
- `recompute` triggers the DAG full_recompute, once for each run of this one.
"""

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, task

from dags.policy import TAG, default_args
from runtime.settings import Settings

settings = Settings()

with DAG(
    "drift",
    description="The shop's database compared with the views, and mended",
    doc_md=__doc__,
    schedule=settings.drift.schedule or None,
    start_date=settings.created_at,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(execution_timeout=timedelta(minutes=30)),
    tags=[TAG, "upkeep"],
):

    @task
    def compare_and_mend() -> dict[str, Any]:
        """Returns what was found and done, by entity."""
        from serving.drift import mend

        found = mend(settings, print, settings.drift.rebuild == "start")
        return {entity: one.to_json() for entity, one in found.items()}

    @task.short_circuit
    def is_to_be_rebuilt(found: Any) -> bool:
        """``found`` is what ``compare_and_mend`` returns. Everything after this is skipped where it says no."""
        return any(one["action"] == "rebuild started" for one in found.values())

    @task
    def reread() -> str:
        """Returns the id of the request that the database be read whole."""
        from serving.drift import reread

        return reread(settings)

    recompute = TriggerDagRunOperator(
        task_id="recompute",
        trigger_dag_id="full_recompute",
        trigger_run_id="drift__{{ run_id }}",
        skip_when_already_exists=True,
    )
    is_to_be_rebuilt(compare_and_mend()) >> reread() >> recompute
