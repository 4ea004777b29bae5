"""``python -m bench.views --path online_retail.csv.gz``: every view beside an independent computation in DuckDB.

Half of the Online Retail data set is replayed and folded by the batch layer; the other half stays with the speed layer.
Then everything is recomputed. For each view: rows that differ between merged and DuckDB (half speed, half batch), and
between the batch side alone and DuckDB; where a column is approximate, the greatest relative error.
"""

import argparse
import json
import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from changelog.producer import ChangelogProducer
from changelog.sources import online_retail
from infra import platform
from infra.commands_views import spark_job
from runtime import ops, trino
from runtime.settings import Settings
from serving import publication, sql
from serving.published import current
from serving.wait import wait
from tests.independent import SAME, differences, errors, records_below
from tests.services import read_log
from views.registry import derived_views, view_named


def batch(settings: Settings) -> None:
    """Build everything from nothing and publish it."""
    publication.publish(settings, spark_job("batch.run", ["--full"], "batch")["run"]["run_id"])


def compared(settings: Settings, database: Any, batch_only: bool) -> tuple[dict[str, int], dict[str, float]]:
    """Differences and errors of what is served, or of its batch side alone."""
    lake = trino.connect(settings)
    with ops.connect(settings) as connection:
        pins = {served.view: served.pin for served in current(connection)}
    at = {name: (view_named(name), pin) for name, pin in pins.items()}
    over = {view.name: view for view in derived_views()}

    def states(name: str) -> tuple[Any, str]:
        view, pin = at[name]
        return view, view.states_sql([sql.batch_side(view, pin)])

    def read(name: str, asked: str) -> list[Any]:
        if not batch_only:
            return list(trino.execute(lake, asked.format(f"serving.{name}"))[1])
        text = (
            over[name].text({view: states(view) for view in over[name].over})
            if name in over
            else at[name][0].read_sql(states(name)[1])
        )
        return list(trino.execute(lake, asked.format(f"({text})"))[1])

    return differences(database, read), errors(database, read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", required=True, help="the UCI Online Retail data set as CSV")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="anabranch-views-") as directory:
        os.environ["ANABRANCH_HOME"] = str(Path(directory) / "home")
        try:
            settings = platform.up(console.print)
            records = online_retail.records(Path(arguments.path))
            for part in (islice(records, 300_000), records):
                with ChangelogProducer(settings) as producer:
                    for record in part:
                        producer.send(record)
                wait(settings)
                if producer.sent == 300_000:
                    console.print("half of it, batch")
                    batch(settings)
            log = read_log(settings)
            ends = {
                (record.topic, partition): 1 << 62 for record in log for partition in range(settings.kafka.partitions)
            }
            database = records_below(log, ends)
            console.print(f"{len(log)} records, half speed and half batch")
            half = compared(settings, database, batch_only=False)
            batch(settings)
            whole = compared(settings, database, batch_only=True)
        finally:
            platform.down(console.print)
    result = {
        name: {
            "merged": half[0][name], "batch only": whole[0][name],
            "error merged": half[1].get(name), "error batch only": whole[1].get(name),
        }
        for name in SAME
    }  # fmt: skip
    if arguments.json:
        print(json.dumps(result))
        return
    table = Table("view", *result["revenue"])
    for name, row in result.items():
        table.add_row(name, *("" if value is None else f"{value:.4g}" for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
