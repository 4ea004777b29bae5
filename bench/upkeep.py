"""``python -m bench.upkeep [--minutes M] [--rate R] [--json]``: an hour in the life of the platform, with Airflow.

A shop goes on selling while the scheduled DAGs do their work. Every minute it is noted how many data files and
snapshots the speed table has and where the boundary stands; both have to level off. At the end each merged query is
timed beside its peer, the same query over the batch side alone, and everything is verified.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.run import timed
from infra import platform
from infra.airflow_api import AirflowApi
from infra.commands_views import spark_job
from runtime import ops, trino
from runtime.settings import Settings
from serving import sql
from serving.published import current
from serving.wait import wait
from tests.services import start
from views.registry import view_named

QUERIES = {
    "order_latest": "SELECT status, currency, count(*), sum(total) FROM ({0}) GROUP BY 1, 2",
    "revenue": "SELECT country, currency, sum(orders), sum(revenue) FROM ({0}) GROUP BY 1, 2",
    "traffic": "SELECT type, channel, sum(events) FROM ({0}) GROUP BY 1, 2",
}
REPEATS = 15


def sample(settings: Settings) -> dict[str, Any]:
    """What the speed table holds now, and how far the boundary is behind the newest epoch."""
    lake = trino.connect(settings)
    _, counted = trino.execute(
        lake,
        'SELECT (SELECT count(*) FROM lake.speed."main$files"), (SELECT count(*) FROM lake.speed."main$snapshots"), '
        '(SELECT count(*) FROM lake.speed."main$manifests"), (SELECT max(epoch) FROM ops.epochs)',
    )
    files, snapshots, manifests, epoch = counted[0]
    with ops.connect(settings) as connection:
        served = current(connection)
    return {
        "files": files,
        "snapshots": snapshots,
        "manifests": manifests,
        "epoch": epoch,
        "boundary_epoch": min(view.epoch for view in served),
        "publication": max(view.publication for view in served),
    }


def compare_queries(settings: Settings) -> dict[str, dict[str, float]]:
    """For each view the median seconds of a query over the merged view and over its batch side alone, in turns."""
    lake = trino.connect(settings)
    with ops.connect(settings) as connection:
        served = {view.view: view.pin for view in current(connection)}
    found = {}
    for name, query in QUERIES.items():
        view = view_named(name)
        texts = {
            "merged": query.format(f"SELECT * FROM serving.{name}"),
            "batch_only": query.format(view.read_sql(view.states_sql([sql.batch_side(view, served[name])]))),
        }
        times: dict[str, list[float]] = {which: [] for which in texts}
        for repeat in range(REPEATS + 2):
            for which, text in texts.items():
                seconds = timed(lambda text=text: trino.execute(lake, text))  # type: ignore[misc]
                if repeat >= 2:  # both are warm then
                    times[which].append(seconds)
        medians = {which: round(statistics.median(values), 3) for which, values in times.items()}
        found[name] = {**medians, "ratio": round(medians["merged"] / medians["batch_only"], 2)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    os.environ["ANABRANCH_HOME"] = str(Path(tempfile.mkdtemp(prefix="anabranch-upkeep-")) / "home")
    try:
        settings = platform.up(console.print, "full")
        shop = start(
            "simulate", "--rate", str(arguments.rate), "--seconds", str(arguments.minutes * 60), "--seed", "1",
            "--duplicates", "0.01", "--late", "0.02", "--broken", "0.001",
            ANABRANCH_HOME=os.environ["ANABRANCH_HOME"],
        )  # fmt: skip
        samples, began = [], time.monotonic()
        for minute in range(1, arguments.minutes + 1):
            time.sleep(max(0.0, began + 60 * minute - time.monotonic()))
            samples.append({"minute": minute, **sample(settings)})
            console.print(samples[-1])
        shop.communicate(timeout=120)
        wait(settings)
        queries = compare_queries(settings)
        report = spark_job("serving.verify", [], "verify", (0, 1))
        runs = AirflowApi(settings).get("dags/batch_views/dagRuns?limit=100")["dag_runs"]
        result = {
            "samples": samples, "queries": queries, "verify": report["differences"] or "exact",
            "records": report["records"],
            "batch_views": [{"state": run["state"], "seconds": run["duration"]} for run in runs],
        }  # fmt: skip
    finally:
        platform.down(console.print)
    if arguments.json:
        print(json.dumps(result))
        return
    table = Table(*samples[0])
    for one in samples:
        table.add_row(*map(str, one.values()))
    Console().print(table)
    Console().print({name: value for name, value in result.items() if name != "samples"})


if __name__ == "__main__":
    main()
