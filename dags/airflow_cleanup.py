"""
### airflow_cleanup: what Airflow remembers of old runs

Deletes runs of more than `airflow.keep_days` ago from Airflow's metadata, and logs that are as old. Nothing of the
platform's own is here: what was published and measured is in the operations database, and `maintenance` retires it.

When `clean` fails, the interface becomes slower over months and nothing else happens.
"""

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from dags.policy import TAG, default_args
from runtime.settings import Settings

settings = Settings()

DAYS = settings.airflow.keep_days

CLEAN = f"""\
set -euo pipefail
# tasks are kept from the metadata by these; this one is about nothing else
unset AIRFLOW__DATABASE__SQL_ALCHEMY_CONN AIRFLOW__CORE__SQL_ALCHEMY_CONN
before=$(date --utc --date='{DAYS} days ago' --iso-8601=seconds)
airflow db clean --yes --skip-archive --clean-before-timestamp "$before"
logs=$(airflow config get-value logging base_log_folder)
find "$logs" -depth -mtime +{DAYS} \\( -type f -o -type d -empty \\) -delete
"""

with DAG(
    "airflow_cleanup",
    description="Old runs and logs of Airflow itself",
    doc_md=__doc__,
    schedule=settings.airflow.cleanup_schedule or None,
    start_date=settings.created_at,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args=default_args(),
    tags=[TAG, "upkeep"],
):
    BashOperator(task_id="clean", bash_command=CLEAN)
