"""
### batch_views: ingest, check, build, compare, publish

Brings the archive's new records into the batch tables and moves the boundary. It is safe to clear or to run again, at
any task and at any time: nothing is served before `publish`, and a repeated build makes another snapshot beside what is
served. While this DAG fails the merged views stay exact; the speed layer holds more, and queries become slower.

When a task fails:

- `await_archive` asks the operations database what the archiver has stored. It is skipped, and with it the run, if
  nothing comes. Look at `anabranch status` and `anabranch logs archiver`.
- `ingest` reads what the archiver has stored. What is missing or damaged is taken from Kafka.
  A hole that Kafka cannot fill stops the archived position before it, and nothing else: what lies below is built and
  published.
- `complain` is the last task and fails for such a hole or object: it names it, with the command that mends it.
- `check_quality` names table, partition, numbers and remedy, and is not tried again: offsets missing or twice, an
  archive that is ahead of its log, or too many bad records.
- `build` says that no epoch is warm and archived yet while the speed layer is behind (`anabranch logs speed`), and is
  tried again.
- `compare` found rows that differ from what is served at the same cut of the log, without a reason, and is not tried
  again: the run is not published. `anabranch compare RUN` prints the report, `anabranch verify` says who is right.
- `publish` is skipped while a rollback holds publication (`anabranch release` lets it go on), and where a newer run
  is served already.

The same by hand, without Airflow: `anabranch batch`. Where the boundary stands: `anabranch boundary`.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from dags.policy import ARCHIVE, TAG, VIEWS, default_args, run_name, spark_job
from dags.triggers import AwaitBacklog
from runtime.settings import Settings

settings = Settings()
run = "{{ run_name(dag.dag_id, run_id) }}"

with DAG(
    "batch_views",
    description="The archive's new records into the batch tables, and the boundary forward",
    doc_md=__doc__,
    schedule=settings.batch.schedule or None,
    start_date=settings.created_at,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(),
    user_defined_macros={"run_name": run_name},
    tags=[TAG, "batch"],
):

    @task
    def check_quality() -> dict[str, int]:
        """Raises QualityError, which is not retried; returns the number of new records of each table."""
        from batch.quality import check_archive
        from runtime import trino

        return check_archive(lambda sql: trino.execute(trino.connect(settings), sql)[1], settings)

    @task
    def compare(run: str) -> dict[str, int]:
        """Returns how many rows differ, by view. Raises QualityError, which is not retried, where nothing says why."""
        from runtime.errors import QualityError
        from serving.compare import compare, described

        report = compare(settings, run)
        print(described(report))
        if report.unexplained:
            raise QualityError(
                f"run {run} differs from what is served in {', '.join(report.unexplained)}, and neither other code nor "
                f"late copies say why: anabranch verify tells which of the two is wrong. To publish it: anabranch "
                f"publish {run}"
            )
        return {view.view: view.differing for view in report.views}

    @task(outlets=[VIEWS])
    def publish(run: str) -> dict[str, Any]:
        """Returns the publication's number (None if the run was served already) and its views."""
        from airflow.sdk.exceptions import AirflowSkipException

        from runtime.errors import BehindError, HeldError
        from serving.publication import publish

        try:
            published = publish(settings, run)
        except (HeldError, BehindError) as error:
            raise AirflowSkipException(str(error)) from error
        return {"publication": published.publication, "views": list(published.views)}

    @task(trigger_rule="none_failed")
    def complain() -> None:
        """Raises HoleError or ArchiveError for what the last ingest could not bring in."""
        from batch.report import complain, last
        from runtime import ops

        with ops.connect(settings) as connection:
            complain(last(connection))

    (
        AwaitBacklog(
            task_id="await_archive",
            idle_seconds=settings.batch.idle_seconds,
            execution_timeout=timedelta(seconds=settings.batch.idle_seconds) + timedelta(minutes=10),
        )
        >> spark_job("ingest", "batch/ingest.py", ["--complain-later"], outlets=[ARCHIVE])
        >> check_quality()
        >> spark_job("build", "batch/build.py", ["--run-id", run])
        >> compare(run)
        >> publish(run)
        >> complain()
    )
