"""
### erase_guest: a guest deleted for good, and the proof

Started by hand, with a form: whom, and whether Kafka is to forget at once what everybody has read. The guest is hidden
from all views with the first task. Then the log is folded without them and published, raw objects and archive are
rewritten, and whatever counted them is retired with its snapshots and backups. The last task searches every store, once
an hour, until Kafka's retention has passed and nothing is found; then who it was is forgotten. It cannot be taken back.

Asked for once more, it takes away what has named the guest since. Who was asked for is scrubbed from this form as well.
`anabranch erasures` lists how far each one is.

When a task fails, clear it: each can be run again at any time.

- `request` says that the shop's database still has the guest: it is the source, and has to delete them first.
- `await_generation` waits for the speed layer, which begins a generation without the guest by itself (`anabranch logs
  speed`).
- `ingest`, `build`, `publish`: as in full_recompute. A rollback that holds publication holds this up (`anabranch
  release`).
- `erase` says that a writer was in the way, and is tried again. `clean` needs the databases, and nothing else.
- `prove` waits. It fails where something is found that time does not help, and names it: clear `erase` and what
  follows. The same by hand: `anabranch erase-guest --resume`.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from dags.policy import ARCHIVE, TAG, VIEWS, default_args, run_name, spark_job
from runtime.settings import Settings

settings = Settings()
run = "{{ run_name(dag.dag_id, run_id) }}"
erasure = "{{ ti.xcom_pull(task_ids='request') }}"

with DAG(
    "erase_guest",
    description="A guest deleted for good: log, archive, views, snapshots, backups; and the proof",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=4,
    is_paused_upon_creation=False,
    default_args=default_args(),
    user_defined_macros={"run_name": run_name},
    tags=[TAG, "upkeep", "manual"],
    params={
        "ref": Param("", type="string", minLength=1, title="Guest", description="The ref of the guest to be erased."),
        "purge_log": Param(
            False,
            type="boolean",
            title="Purge the log",
            description="Kafka forgets everything up to the guest's last record, others' included, where the platform "
            "has read it; other consumers that are behind miss it. Otherwise its retention is waited for.",
        ),
        "despite_source": Param(
            False, type="boolean", title="Despite the source", description="Although the shop's database has the guest."
        ),
    },
):

    @task
    def request(**context: Any) -> int:
        """Returns the number of the erasure; it is the same if this is done again."""
        from batch.backup import backup
        from serving.erasure import request

        params = context["params"]
        number = request(settings, params["ref"], params["purge_log"], params["despite_source"])
        backup(settings)  # a restore must not forget who is to be forgotten
        return number

    @task.sensor(poke_interval=10, timeout=3600, mode="reschedule")
    def await_generation(number: int) -> bool:
        """Whether a batch run can switch to a generation without the guest."""
        from batch.erasure import is_generation_ready, is_published

        return is_published(settings, number) or is_generation_ready(settings, number)

    @task(outlets=[VIEWS])
    def publish(run: str, number: int) -> dict[str, Any]:
        """Returns the publication's number and its views; nothing where somebody published without the guest first."""
        from batch.erasure import ensure_published
        from serving.publication import publish

        published = ensure_published(settings, number, lambda: publish(settings, run, back=True))
        return {"publication": published.publication, "views": list(published.views)} if published else {}

    @task
    def clean(number: int) -> None:
        """Databases, logs and backups; and the views without what hid the guest."""
        from batch.erasure import clean
        from serving.publication import refresh

        clean(settings, number)
        refresh(settings)

    @task.sensor(poke_interval=3600, timeout=timedelta(days=60).total_seconds(), mode="reschedule")
    def prove(number: int) -> bool:
        """Whether a search of every store has found nothing. What Kafka still has is in the log of this task."""
        from batch.erasure import finish
        from serving.erasure import narrow

        narrow(settings, number)
        proof = finish(settings, number)
        for remark in proof.remarks:
            print(remark)
        for one in proof.waiting:
            print(f"waiting for Kafka's retention: {one}")
        return not proof.found

    number: Any = request()
    (
        await_generation(number)
        >> spark_job("ingest", "batch/ingest.py", ["--complain-later"], outlets=[ARCHIVE])
        >> spark_job("build", "batch/build.py", ["--full", "--run-id", run, "--erasures", erasure])
        >> publish(run, number)
        >> spark_job("erase", "batch/erase.py", ["--erasure", erasure])
        >> clean(number)
        >> prove(number)
    )
