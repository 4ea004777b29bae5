"""``python -m bench.cdc [--rows N] [--rate R] [--seconds S] [--json]``: capture of a shop, on a platform of its own.

``rows`` rows are in the shop before the connector starts; then its application commits ``rate`` transactions a second.
First nobody is killed, and a probe measures how long a commit takes into the merged view. Then connector, mapper and
PostgreSQL are killed while it works, and everything is counted: changes in the database, records in the stream, in the
log and in the views, and the rows in which database and views differ in the end.
"""

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

from bench.run import await_, quantile
from changelog.reader import Reader
from changelog.sources.cdc import stream
from changelog.sources.cdc.events import Changed, End, Read, Truncated, parse
from changelog.sources.cdc.mapper import SERVICE
from changelog.sources.shop.application import Application
from changelog.topics import start_offsets
from infra import platform, prepare, supervise
from infra.artifacts.install import install
from infra.home import initialise
from infra.services import services
from runtime import trino
from runtime.settings import Settings
from serving import drift as drifting

Say = Callable[[str], None]

VIEWS = {"customers": "guest_latest", "sessions": "session_latest", "orders": "order_latest"}
WARM_SECONDS = 20


def fill(settings: Settings, rows: int) -> None:
    """So many rows: a fifth customers, a fifth sessions, a fifth orders, two items each."""
    with psycopg.connect(settings.shop.dsn, autocommit=True) as shop:
        for sql in (
            "INSERT INTO customers (first_name, country, created_at, modified_at) "
            "SELECT 'c' || n, 'GB', now(), now() FROM generate_series(1, %s) n",
            "INSERT INTO sessions (customer_id, channel, started_at, modified_at) "
            "SELECT n, 'WEB', now(), now() FROM generate_series(1, %s) n",
            "INSERT INTO orders (customer_id, session_id, status, currency, country, total, created_at, modified_at) "
            "SELECT n, n, 'PLACED', 'GBP', 'GB', n, now(), now() FROM generate_series(1, %s) n",
        ):
            shop.execute(sql, (rows // 5,))
        shop.execute(
            "INSERT INTO order_items (order_id, line, sku, quantity, unit_price) "
            "SELECT n, line, 's', 1, n / 2.0 FROM generate_series(1, %s) n, generate_series(1, 2) line",
            (rows // 5,),
        )


class Shop(threading.Thread):
    """The application at work; where the database goes away, it comes back to it."""

    def __init__(self, settings: Settings, rate: float, seed: int) -> None:
        super().__init__()
        self._settings, self._rate = settings, rate
        self.over = threading.Event()
        self.application = Application(self._connect(), seed)

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.application.run(self._rate, 3600, self.over.is_set)
            except psycopg.OperationalError:
                self._back()

    def _back(self) -> None:
        while not self.over.is_set():
            try:
                self.application.connection = self._connect()
                return
            except psycopg.OperationalError:
                self.over.wait(0.2)

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._settings.shop.dsn, autocommit=True, connect_timeout=5)

    @property
    def committed(self) -> int:
        return sum(self.application.done.values())


def equal(settings: Settings) -> bool:
    """Whether the merged views have the rows of the tables: number, and a sum over what changes."""
    lake = trino.connect(settings)
    with psycopg.connect(settings.shop.dsn, autocommit=True) as shop:
        for table, view in VIEWS.items():
            measure = "coalesce(sum(total), 0)" if table == "orders" else "0"
            ours = shop.execute(f"SELECT count(*), {measure} FROM {table}").fetchone()
            theirs = trino.execute(lake, f"SELECT count(*), {measure} FROM serving.{view} WHERE ref LIKE 'shop-%'")[1][
                0
            ]
            if ours is None or tuple(ours) != tuple(theirs):
                return False
    return True


class Probe(NamedTuple):
    """A customer, when it was committed (seconds since 1970), and how long after that it was seen."""

    ref: str
    committed: float
    took: float


def probes(settings: Settings, seconds: float) -> list[Probe]:
    """From the commit of a customer to its being seen in ``serving.guest_latest``, one after another."""
    lake, found, pause, began = trino.connect(settings), [], random.Random(1), time.time()
    with psycopg.connect(settings.shop.dsn, autocommit=True) as shop:
        while time.time() - began < seconds:
            sql = "INSERT INTO customers (created_at, modified_at) VALUES (now(), now()) RETURNING id"
            row = shop.execute(sql).fetchone()
            committed = time.time()
            ref = f"shop-guest-{row[0] if row else 0}"
            asked = f"SELECT 1 FROM serving.guest_latest WHERE ref = '{ref}'"
            while not trino.execute(lake, asked)[1]:
                time.sleep(0.3)  # asking all the time would measure the asking
            if committed - began > WARM_SECONDS:
                found.append(Probe(ref, committed, time.time() - committed))
            time.sleep(pause.uniform(0, 1))
    return found


def stages(settings: Settings, probed: list[Probe]) -> dict[str, float]:
    """Where the time of the probes went, by the broker's clock, this machine's: p50 of each part in s."""
    first, end = stream.bounds(settings)
    captured: dict[str, float] = {}
    with Reader(settings, {stream.TOPIC: {0: first}}) as reader:
        for entries in reader.read_to({stream.TOPIC: {0: end}}):
            for entry in entries:
                event = parse(entry.topic, entry.partition, entry.offset, entry.value)
                if isinstance(event, Changed) and event.table == "customers" and event.created:
                    captured.setdefault(f"shop-guest-{(event.after or {})['id']}", entry.time / 1000)
    logged: dict[str, float] = {}
    with Reader(settings, start_offsets(settings, ["changelog.guest"])) as reader:
        for entries in reader.read_to(reader.ends()):
            for entry in entries:
                logged.setdefault((entry.key or b"").decode(), entry.time / 1000)
    parts = {
        "database to stream": [captured[one.ref] - one.committed for one in probed],
        "stream to log": [logged[one.ref] - captured[one.ref] for one in probed],
        "log to view": [one.committed + one.took - logged[one.ref] for one in probed],
    }
    return {f"of it {name}, p50 s": round(statistics.median(took), 2) for name, took in parts.items()}


def kill(settings: Settings, name: str) -> None:
    """SIGKILL, and wait until the supervisor has started it again."""
    pid = supervise.states(settings)[name]["pid"]
    os.kill(pid, signal.SIGKILL)
    await_(lambda: supervise.states(settings)[name]["pid"] not in (0, pid), 60)


def counts(settings: Settings) -> dict[str, int]:
    """What is in the stream, and what capture has written to the log."""
    first, end = stream.bounds(settings)
    rows: dict[int, set[int]] = {}
    ends: dict[int, int] = {}
    found = {"records of the stream": 0, "rows read for snapshots": 0, "delivered again": 0}
    with Reader(settings, {stream.TOPIC: {0: first}}) as reader:
        while reader.positions[stream.TOPIC][0] < end:
            for entry in reader.read(1.0):
                found["records of the stream"] += 1
                event = parse(entry.topic, entry.partition, entry.offset, entry.value)
                if isinstance(event, Read):
                    found["rows read for snapshots"] += 1
                elif isinstance(event, Changed | Truncated):
                    orders = rows.setdefault(event.tx, set())
                    found["delivered again"] += event.order in orders
                    orders.add(event.order)
                elif isinstance(event, End):
                    ends[event.tx] = event.rows
    found["row changes captured"] = sum(map(len, rows.values()))
    found["transactions with rows"] = sum(1 for number in ends.values() if number)
    found["ends whose rows are not whole"] = sum(len(rows.get(tx, ())) != number for tx, number in ends.items())
    identities: set[tuple[str, bytes | None, str]] = set()
    written = 0
    with Reader(settings, start_offsets(settings)) as reader:
        for entries in reader.read_to(reader.ends()):
            for entry in entries:
                provenance = json.loads(entry.value or b"{}").get("provenance", {})
                if provenance.get("serviceName") == SERVICE:
                    written += 1
                    identities.add((entry.topic, entry.key, provenance["identifier"]))
    found["records of the log"] = written
    found["of them twice"] = written - len(identities)
    return found


def measure(settings: Settings, rows: int, rate: float, seconds: float, say: Say) -> dict[str, Any]:
    """All figures, by name."""
    programs = install(say)
    settings = initialise(programs, "full")
    supervise.reread(settings, services(settings, programs))
    prepare.shop(settings)
    fill(settings, rows)
    found: dict[str, Any] = {"rows before": rows}
    began = time.monotonic()
    platform.start_capture(settings, say)
    ready = time.monotonic()
    await_(lambda: equal(settings), 600)
    found["seconds until connector and mapper run"] = round(ready - began, 1)
    found["seconds of the first snapshot, until it is in the views"] = round(time.monotonic() - ready, 1)
    say(str(found))
    shop = Shop(settings, rate, 1)
    shop.start()
    try:
        probed = probes(settings, seconds)
        took = [one.took for one in probed]
        found["commit to merged view, p50 s"] = round(statistics.median(took), 2)
        found["commit to merged view, p99 s"] = round(quantile(took, 0.99), 2)
        found["probes"] = len(took)
        found |= stages(settings, probed)
        say(str(found))
        for name in ("connect", "cdc", "postgres", "cdc", "connect"):
            before = shop.committed
            kill(settings, name)
            say(f"killed {name}")
            await_(lambda: shop.committed > before + rate * 10, 120)  # noqa: B023  # called at once
    finally:
        shop.over.set()
        shop.join()
    began = time.monotonic()
    await_(lambda: equal(settings), 300)
    found["seconds until the views are the database, after the last commit"] = round(time.monotonic() - began, 1)
    found["transactions committed by the application"] = shop.committed
    for entity, one in drifting.measure(settings).items():
        found[f"drift of {entity}"] = f"{one.differing} of {one.compared:,} rows ({one.refused} refused by the log)"
    return found | counts(settings)


def main() -> None:
    """Measure on a fresh platform in a temporary home, and end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="in the shop before the connector starts")
    parser.add_argument("--rate", type=float, default=200, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=120, help="how long commits are followed into the views")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as directory:
        os.environ["ANABRANCH_HOME"] = str(Path(directory) / "home")
        try:
            settings = platform.up(console.print)
            found = measure(settings, arguments.rows, arguments.rate, arguments.seconds, console.print)
        finally:
            platform.down(console.print)
    if arguments.json:
        print(json.dumps(found))
        return
    table = Table("what", "")
    for what, figure in found.items():
        table.add_row(what, str(figure))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
