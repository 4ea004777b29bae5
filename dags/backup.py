"""
### backup: the catalog and the operations database

Without them nobody knows which files of the lake are tables. A backup is one object in the lake's bucket, under
`backups/`; it is taken after each publication and once a day (maintenance takes one too, before it deletes). Restore
with the platform down: `anabranch restore`, then `anabranch up` and `anabranch verify`.

When `back_up` fails: PostgreSQL or the object store does not answer (`anabranch status`). Each run takes another
backup, and the newest fifty are kept.
"""

from typing import Any

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable, task

from dags.policy import TAG, VIEWS, default_args
from runtime.settings import Settings

settings = Settings()

with DAG(
    "backup",
    description="Catalog and operations database into the object store",
    doc_md=__doc__,
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 3 * * *", timezone="UTC"), assets=[VIEWS]),
    start_date=settings.created_at,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(),
    tags=[TAG, "upkeep"],
):

    @task
    def back_up() -> dict[str, Any]:
        """Returns the backup's name and the rows of each table."""
        from batch.backup import backup

        done = backup(settings)
        return {"name": done.name, "rows": done.rows}

    back_up()
