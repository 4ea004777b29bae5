"""
### maintenance: what keeps queries fast and the lake small

Retires publications beyond the newest few (`batch.keep_publications`) and runs that nobody published, takes a backup,
deletes speed rows below the oldest boundary that can be published, puts small files of the archive together, expires
snapshots that nothing pins, and once a day removes files that nothing refers to. What is served, or can be served by a
rollback, is never touched. It runs beside the stream and beside batch runs.

The report at the end of the log of `maintain` says what was done, and how many data files and snapshots each table has:
both level off. Under `failed` is what a writer was in the way of; the next run tries it again. When the task itself
fails, queries become slower with time and nothing else happens; the reason is at the end of the log.
"""

from airflow.sdk import DAG, Param

from dags.policy import TAG, default_args, spark_job
from runtime.settings import Settings

settings = Settings()

with DAG(
    "maintenance",
    description="Retention, compaction, expiry and backup",
    doc_md=__doc__,
    schedule=settings.batch.maintenance_schedule or None,
    start_date=settings.created_at,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(),
    tags=[TAG, "upkeep"],
    params={"orphans": Param(False, type="boolean", title="Look for orphan files now", description="not once a day")},
):
    spark_job("maintain", "batch/maintenance.py", ["--orphans={{ params.orphans | lower }}"])
