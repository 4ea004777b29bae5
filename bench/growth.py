"""``python -m bench.growth [--records N] [--steps K] [--json]``: what each layer costs as the volume grows.

On a platform of its own, one thing grows at a time, the others stay as they are:

- records: the log doubles, step by step; each step is archived, folded by the speed layer, ingested and built
  incrementally, and then everything is built from nothing.
- views: the whole log built from nothing for one view, four, and all.
- keys: the same number of events of few guests and of many.
- epochs: the speed side grows by small epochs while the boundary stands, and the merged query is asked.

docs/scale.md says what follows from it for larger installations.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.run import EVENT, await_, last_epoch, timed
from changelog.archive.position import stored_offsets
from changelog.envelope import encode, envelope, timestamp
from changelog.positions import covers
from changelog.producer import ChangelogProducer, Record
from changelog.sources.simulate import Shop
from changelog.topics import end_offsets
from infra import platform
from infra.commands_views import spark_job
from runtime import trino
from runtime.settings import Settings
from serving import publication
from serving.wait import wait
from views.registry import all_views

QUERY = "SELECT type, channel, sum(events) FROM serving.traffic GROUP BY 1, 2"
REPEATS = 7
FEW, MANY = 100, 100_000
EPOCHS = (25, 50, 100, 200)

Row = dict[str, Any]


def feed(settings: Settings, records: Iterator[Record]) -> int:
    with ChangelogProducer(settings) as producer:
        for record in records:
            producer.send(record)
    return producer.acknowledged


def of_guests(number: int, guests: int, prefix: str) -> Iterator[Record]:
    """``number`` events of so many guests, a millisecond apart."""
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    for n in range(number):
        guest = f"{prefix}-guest-{n % guests}"
        event = {"ref": f"{prefix}-{n}", "guestRef": guest, "type": "VIEW", "channel": "WEB"}
        made = event | {"page": f"/p/{n % 97}", "createdAt": timestamp(begin + timedelta(milliseconds=n))}
        yield Record(EVENT, guest.encode(), encode(envelope("growth", f"{prefix}-{n}", made)))


def asked(settings: Settings) -> float:
    """Median seconds of the merged query, warm."""
    lake = trino.connect(settings)
    times = [timed(lambda: trino.execute(lake, QUERY)) for _ in range(REPEATS + 2)]
    return round(statistics.median(times[2:]), 3)


def built(*options: str) -> dict[str, Any]:
    return dict(spark_job("batch.run", list(options), "batch"))


def files(settings: Settings) -> int:
    """Data files of the speed table."""
    return int(trino.execute(trino.connect(settings), 'SELECT count(*) FROM lake.speed."main$files"')[1][0][0])


def by_records(settings: Settings, first: int, steps: int, say: Callable[[Row], None]) -> None:
    """The log doubles at each step. Seconds of each layer for what is new, and of a full build of all there is."""
    shop, total = Shop(1, rate=0), 0
    for _ in range(steps):
        new = total if total else first
        written = timed(lambda new=new: feed(settings, shop.records(new)))  # type: ignore[misc]
        total += new
        ends, began = end_offsets(settings), time.monotonic()
        await_(lambda ends=ends: covers(stored_offsets(settings), ends))  # type: ignore[misc]
        archived = time.monotonic() - began
        wait(settings, timeout_seconds=1800)
        seen = time.monotonic() - began
        one = built()
        publication.publish(settings, one["run"]["run_id"])
        merged = asked(settings)
        full = built("--full")
        say({
            "records": total, "new": new, "write s": round(written, 1), "archived after s": round(archived, 1),
            "seen after s": round(seen, 1), "ingest s": one["ingest"]["seconds"], "increment s": one["run"]["seconds"],
            "full build s": full["run"]["seconds"], "merged query s": merged,
        })  # fmt: skip


def by_views(settings: Settings, say: Callable[[Row], None]) -> None:
    """A full build of the same log for more and more views."""
    names = [view.name for view in all_views()]
    for number in sorted({1, min(4, len(names)), len(names)}):
        chosen = [word for name in names[:number] for word in ("--view", name)]
        say({"views": number, "full build s": built("--full", *chosen)["run"]["seconds"]})


def by_keys(settings: Settings, number: int, say: Callable[[Row], None]) -> None:
    """As many events of few guests as of many: seen through Trino, ingested and built."""
    for guests in (FEW, MANY):
        feed(settings, of_guests(number, guests, f"keys{guests}"))
        seen = timed(lambda: wait(settings, timeout_seconds=1800))
        one = built()
        publication.publish(settings, one["run"]["run_id"])
        say({
            "guests": guests, "events": number, "seen after s": round(seen, 1), "ingest s": one["ingest"]["seconds"],
            "increment s": one["run"]["seconds"], "merged query s": asked(settings),
        })  # fmt: skip


def by_epochs(settings: Settings, say: Callable[[Row], None]) -> None:
    """The boundary stands; small epochs come. What the merged query costs, and how long an epoch takes."""
    begin = next(iter(last_epoch(settings)))
    for wanted in EPOCHS:
        number = 0
        while next(iter(last_epoch(settings))) - begin < wanted:
            feed(settings, of_guests(50, 50, f"epochs{wanted}-{number}"))
            number += 1
            wait(settings)
        took = next(iter(last_epoch(settings).values()))
        say({"epochs": wanted, "files": files(settings), "epoch s": took, "merged query s": asked(settings)})


def main() -> None:
    """Measure on a fresh platform in a temporary home, and end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=int, default=25_000, help="of the first step; each further one doubles the log"
    )
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    console = Console(stderr=True)
    found: dict[str, list[Row]] = {}

    def noted(what: str) -> Callable[[Row], None]:
        def say(row: Row) -> None:
            console.print(what, row)
            found.setdefault(what, []).append(row)

        return say

    with tempfile.TemporaryDirectory(prefix="anabranch-growth-") as directory:
        os.environ["ANABRANCH_HOME"] = str(Path(directory) / "home")
        os.environ["ANABRANCH_ARCHIVER__MAX_AGE_SECONDS"] = "1"  # or its time would be that of waiting for age
        try:
            settings = platform.up(console.print)
            by_records(settings, arguments.records, arguments.steps, noted("records"))
            by_views(settings, noted("views"))
            by_keys(settings, arguments.records, noted("keys"))
            by_epochs(settings, noted("epochs"))
        finally:
            platform.down(console.print)
    if arguments.json:
        print(json.dumps(found))
        return
    for what, rows in found.items():
        table = Table(*rows[0], title=f"what grows: {what}", title_justify="left")
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
        Console(width=150).print(table)


if __name__ == "__main__":
    main()
