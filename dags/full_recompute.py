"""
### full_recompute: fold the whole log anew, beside what is served

Started by hand, with a form: which views, from the raw objects (every record is judged anew) or from the columnar
archive, into which location, and whether to publish. What is served goes on unchanged until `publish`, which replaces
batch side and boundary of each view in one step.

The report is in the log and the XCom of `compare`, whole in the table `ops.public.comparisons`
(`anabranch comparison RUN` prints it): for each view how many rows differ, by key and by measure, with examples.

When a task fails:

- `options` turns the form into the build's command line, and refuses a location whose name is taken.
- `ingest`: as in batch_views, where what is missing is complained of.
- `build` says that no epoch is warm and archived yet while the speed layer is behind, and is tried again. Out of
  memory: fewer views at a time, or more `batch.driver_memory`.
- `compare` fails only if Trino does. It does not judge: a recompute after a change of code is meant to differ.
- `publish` is skipped with "compare only", with a location of its own, if anything differs and the form says that
  nothing may, and while a rollback holds publication (`anabranch release`). What was built can still be published by
  hand for a day: `anabranch publish RUN`. A recompute may end behind what the schedule published meanwhile; it is
  published all the same, and the next scheduled run moves on from there.

Clear any task, at any time: what is built again stands beside what is served.
"""

from typing import Any

from airflow.sdk import DAG, Param, task

from dags.policy import ARCHIVE, TAG, VIEWS, default_args, run_name, spark_job, views_param
from runtime.settings import Settings

PUBLISH = ("publish", "publish if nothing differs", "compare only")
SOURCES = ("columnar archive", "raw objects")

settings = Settings()
run = "{{ run_name(dag.dag_id, run_id) }}"

with DAG(
    "full_recompute",
    description="The whole log folded anew, compared with what is served, and published",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=4,
    is_paused_upon_creation=False,
    default_args=default_args(),
    user_defined_macros={"run_name": run_name},
    tags=[TAG, "batch", "manual"],
    params={
        "views": views_param(True, "What to compute anew. The others stay as they are."),
        "source": Param(
            SOURCES[0],
            type="string",
            enum=list(SOURCES),
            title="Source",
            description="The columnar archive is faster. From the raw objects every record is judged anew, and told "
            "from its duplicates anew.",
        ),
        "location": Param(
            "batch",
            type="string",
            pattern="^[a-z][a-z0-9_]{0,60}$",
            title="Location",
            description="batch: beside what is served, so that it can be published. Any other name: tables of their "
            "own, lake.NAME.VIEW, which are never served.",
        ),
        "publish": Param(
            PUBLISH[0], type="string", enum=list(PUBLISH), title="Then", description="What follows the comparison."
        ),
    },
):

    @task
    def options(run: str, **context: Any) -> list[str]:
        """The build's command line, as the form says. Raises TerminalError for one that makes no sense."""
        from batch.plan import Plan

        params = context["params"]
        Plan(run_id=run, location=params["location"])
        views = [part for name in params["views"] for part in ("--view", name)]
        objects = ["--objects"] if params["source"] == SOURCES[1] else []
        return ["--full", "--run-id", run, "--location", params["location"], *views, *objects]

    @task
    def compare(run: str, **context: Any) -> dict[str, int]:
        """Returns the number of rows that differ, by view; the report is noted beside the run."""
        from serving.beside import show
        from serving.compare import compare, described

        params = context["params"]

        if params["location"] != "batch":
            show(settings, run)
        report = compare(settings, run)
        print(described(report))
        return {view.view: view.differing for view in report.views}

    @task(outlets=[VIEWS])
    def publish(run: str, differing: Any, **context: Any) -> dict[str, Any]:
        """``differing`` is what ``compare`` returns. Returns the publication's number (None if the run was served
        already) and its views."""
        from airflow.sdk.exceptions import AirflowSkipException

        from runtime.errors import HeldError
        from serving.publication import publish

        params = context["params"]

        differ = {view: rows for view, rows in differing.items() if rows}
        if params["publish"] == PUBLISH[2] or params["location"] != "batch":
            raise AirflowSkipException("compare only, as the form says")
        if params["publish"] == PUBLISH[1] and differ:
            raise AirflowSkipException(f"rows differ: {differ}; publish it by hand if that is right: publish {run}")
        try:
            published = publish(settings, run, back=True)
        except HeldError as error:
            raise AirflowSkipException(str(error)) from error
        return {"publication": published.publication, "views": list(published.views)}

    build = spark_job("build", "batch/build.py", options(run))
    compared = compare(run)
    spark_job("ingest", "batch/ingest.py", ["--complain-later"], outlets=[ARCHIVE]) >> build >> compared
    publish(run, compared)
