"""
### rollback: serve an earlier publication again

Started by hand, with a form: which views, and which publication to go back to (`anabranch publications` lists them; by
default the one before). Each view goes back in one step, its speed side with it, so the numbers stay right; then
publication is held, so that the next scheduled run does not undo it. Let it go on with `anabranch release`.

When `rollback` fails, nothing has changed: there is no such publication, maintenance has retired it, or its generation
of the speed layer no longer runs. Then the way back is a new run: the DAG full_recompute.

Cleared or tried again, a rollback that was done is not done twice: to go further back, trigger another.
"""

from typing import Any

from airflow.sdk import DAG, Param, task

from dags.policy import TAG, VIEWS, default_args, run_name, views_param
from runtime.settings import Settings

settings = Settings()

with DAG(
    "rollback",
    description="An earlier publication served again, in one step for each view",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(),
    user_defined_macros={"run_name": run_name},
    tags=[TAG, "serving", "manual"],
    params={
        "views": views_param(False, "Those that go back. None: all of the publication."),
        "publication": Param(
            None,
            type=["null", "integer"],
            title="Publication",
            description="The one to serve again. Empty: the one before what is served.",
        ),
    },
):

    @task(outlets=[VIEWS])
    def rollback(request: str, **context: Any) -> dict[str, Any]:
        """Returns the publication's number (None if it was done already) and its views."""
        from serving.publication import rollback

        params = context["params"]

        done = rollback(settings, list(params["views"] or []), params["publication"], request)
        return {"publication": done.publication, "views": list(done.views)}

    rollback("{{ run_name(dag.dag_id, run_id) }}")
