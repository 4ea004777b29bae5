"""
### watch: lag and freshness, and who is told

Measures how far archiver, derive, speed layer, ingest and boundary are behind the log, in records and seconds, into
`ops.public.lag`, and tells of what is beyond its limit (`watch.max_behind_seconds`), and of a boundary older than half
of Kafka's retention: to the log of `look`, and to a webhook if one is configured (`watch.webhook_url`). An alert is
told once when it begins and once when it ends; `ops.public.alerts` keeps the last of each.

It fails only if Kafka or PostgreSQL does not answer. By hand: `anabranch watch`.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from dags.policy import TAG, default_args
from runtime.settings import Settings

settings = Settings()

with DAG(
    "watch",
    description="Lag and freshness of every layer, and alerts",
    doc_md=__doc__,
    schedule=settings.watch.schedule or None,
    start_date=settings.created_at,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(retries=1, execution_timeout=timedelta(minutes=5)),
    tags=[TAG, "upkeep"],
):

    @task
    def look() -> dict[str, Any]:
        """Returns the worst lag of each component, and the alerts that are raised now."""
        from serving.watch import watch

        found = watch(settings)
        return {"lag": found.lag, "alerts": found.alerts}

    look()
