"""
### replay: history folded again, elsewhere

Started by hand, with a form: from which position on, with the code of this checkout, into which location. Nothing that
is served is touched. The result can be queried as `lake.LOCATION.VIEW`, its partial states as
`lake.LOCATION.VIEW_states`; the same location again replaces it.

The report in the log of `report` says how many rows each view has and, for a replay from the beginning, how they
differ from what is served.

When a task fails: `options` names a location that is taken, or a position that it cannot read; that is not worth
trying again. `build` and `report`: as in full_recompute. Remove a location that is no longer needed with
`anabranch drop LOCATION`.
"""

from typing import Any

from airflow.sdk import DAG, Param, task

from dags.policy import TAG, default_args, run_name, spark_job, views_param
from runtime.settings import Settings

settings = Settings()
run = "{{ run_name(dag.dag_id, run_id) }}"

with DAG(
    "replay",
    description="History from any position on, folded into a location of its own",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(),
    user_defined_macros={"run_name": run_name},
    tags=[TAG, "batch", "manual"],
    params={
        "position": Param(
            "",
            type="string",
            title="From",
            description="Empty: the beginning of the log. A time: records appended since, 2026-05-01T00:00:00Z. Or a "
            'vector, the first offset of each partition: {"changelog.order": {"0": 120}}; what it does not name begins '
            "at 0.",
        ),
        "location": Param(
            "replay",
            type="string",
            pattern="^[a-z][a-z0-9_]{0,60}$",
            title="Location",
            description="A name of its own; what an earlier replay left under it is replaced.",
        ),
        "views": views_param(True, "What to fold."),
    },
):

    @task
    def options(run: str, **context: Any) -> list[str]:
        """The build's command line, as the form says. Raises TerminalError for one that makes no sense."""
        from batch.plan import Plan, parse_since
        from runtime.errors import TerminalError

        params = context["params"]
        if params["location"] == "batch":
            raise TerminalError("location 'batch' is what is served; give a name of its own")
        Plan(run_id=run, location=params["location"], since=parse_since(params["position"]))
        views = [part for name in params["views"] for part in ("--view", name)]
        since = ["--since", params["position"]] if params["position"] else []
        return ["--full", "--run-id", run, "--location", params["location"], *views, *since]

    @task
    def report(run: str, **context: Any) -> dict[str, Any]:
        """Returns the rows of each view and, for a replay from the beginning, how many of them differ."""
        from serving.beside import show
        from serving.compare import compare, described

        params = context["params"]

        found: dict[str, Any] = {"rows": show(settings, run)}
        if not params["position"]:
            compared = compare(settings, run)
            print(described(compared))
            found["differing"] = {view.view: view.differing for view in compared.views}
        return found

    build = spark_job("build", "batch/build.py", options(run))
    build >> report(run)
