"""``anabranch demo``: the whole story on generated data, in a home of its own. It checks its own numbers."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from batch.run import wait_for_archiver
from changelog.producer import ChangelogProducer, Record
from changelog.sources.simulate import Shop
from changelog.topics import end_offsets
from changelog.validation import check
from infra import platform
from infra.airflow_api import AirflowApi
from infra.commands_views import spark_job
from runtime import ops, trino
from runtime.errors import AnabranchError, TerminalError
from runtime.settings import Settings, entity_of, home_directory
from serving import publication
from serving.published import current
from serving.wait import wait

YESTERYEAR = "2020-06-01T00:00:00"
"""The first shop did its business then, so that its answer can be told from that of the shop which goes on selling."""

ARCHIVER_SECONDS, DAG_SECONDS = 60, 600

ANSWER = """
SELECT (SELECT count(*) FROM serving.order_latest {at_created}) AS orders_there,
       (SELECT sum(orders) FROM serving.revenue {at_hour}) AS orders_that_count,
       (SELECT sum(revenue) FROM serving.revenue {at_hour}) AS revenue,
       (SELECT sum(events) FROM serving.traffic {at_minute}) AS events
"""


class DemoError(TerminalError):
    """A number is not what it must be."""


@dataclass
class Tally:
    """What the demo sent, counted in plain Python: the answer that the platform must give."""

    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: int = 0
    _seen: set[str] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Count a record; duplicates, tombstones and bad records change nothing."""
        entity = entity_of(record.topic)
        if not record.value or check(entity, record.key, record.value).reason is not None:
            return
        change = json.loads(record.value, parse_float=Decimal)
        if change["provenance"]["identifier"] in self._seen:
            return
        self._seen.add(change["provenance"]["identifier"])
        if entity == "event":
            self.events += 1
        elif entity == "order":
            current = change.get("current")
            if current:
                self.orders[current["ref"]] = current
            else:
                self.orders.pop(change["original"]["ref"], None)

    def answer(self) -> list[Any]:
        """(orders there, orders that count, revenue, events), as ANSWER gives them."""
        counting = [order for order in self.orders.values() if order["status"] != "CANCELLED"]
        revenue = sum((Decimal(order["total"]) for order in counting), Decimal(0))
        return [len(self.orders), len(counting), revenue.quantize(Decimal("0.0001")), self.events]


class Story:
    """The steps, each of which says what it shows."""

    def __init__(self) -> None:
        self._console = Console(width=None if sys.stdout.isatty() else 120)
        self._began = time.monotonic()
        self._number = 0

    def step(self, title: str) -> None:
        self._number += 1
        self._console.print(f"\n[bold]{self._number}. {title}[/bold]  ({time.monotonic() - self._began:.0f} s)")

    def say(self, text: str) -> None:
        self._console.print(f"   {text}", highlight=False)

    def check(self, what: str, found: Iterable[Any], expected: Iterable[Any]) -> None:
        """Show a comparison; raise DemoError if it fails."""
        found, expected = list(found), list(expected)
        shown = "  ".join(str(value) for value in found)
        if found != expected:
            raise DemoError(f"{what}: the platform says {shown}, expected {'  '.join(map(str, expected))}")
        self.say(f"[green]✓[/green] {what}: {shown}")

    def table(self, columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
        table = Table(*columns)
        for row in rows:
            table.add_row(*map(str, row))
        self._console.print(table)


class Feed(threading.Thread):
    """A shop that goes on selling in the background."""

    def __init__(self, settings: Settings, tally: Tally) -> None:
        super().__init__(daemon=True)
        self._settings, self._tally = settings, tally
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.sent = 0

    def run(self) -> None:
        shop = Shop(seed=2, duplicates=0.05, rate=100)
        try:
            with ChangelogProducer(self._settings, rate=100) as producer:
                for record in shop.records(1_000_000):
                    if self._over.is_set():
                        return
                    producer.send(record)
                    self._tally.add(record)
                    self.sent += 1
        except BaseException as error:  # handed to the thread that waits
            self._failure = error

    def stop(self) -> None:
        """End after what was sent is acknowledged. Raises what went wrong meanwhile."""
        self._over.set()
        self.join()
        if self._failure:
            raise self._failure


class Watcher(threading.Thread):
    """Asks for the first shop's answer again and again, and notes every answer that differs."""

    def __init__(self, settings: Settings, expected: list[Any]) -> None:
        super().__init__(daemon=True)
        self._settings, self._expected = settings, expected
        self._over = threading.Event()
        self.asked = 0
        self.wrong: list[Any] = []

    def run(self) -> None:
        while not self._over.wait(2):
            try:
                found = first_shop(self._settings)
            except AnabranchError as error:
                found = [error]
            self.asked += 1
            if found != self._expected:
                self.wrong.append(found)

    def stop(self) -> None:
        self._over.set()
        self.join()


def ask(settings: Settings, before: bool) -> list[Any]:
    """ANSWER for the first shop alone (``before`` 2021), or for everything."""
    limits = {
        name: f"WHERE {column} < TIMESTAMP '2021-01-01 00:00:00 UTC'" if before else ""
        for name, column in (("at_created", "created_at"), ("at_hour", "hour"), ("at_minute", "minute"))
    }
    _, rows = trino.execute(trino.connect(settings), ANSWER.format(**limits))
    return list(rows[0])


def first_shop(settings: Settings) -> list[Any]:
    """ANSWER for the first shop."""
    return ask(settings, before=True)


def run() -> None:
    """Tell the story. Raises DemoError, and leaves everything as it is, where a number is wrong."""
    story = Story()
    home = _own_home(story)
    story.step("The platform comes up: PostgreSQL, Kafka, MinIO, Trino, archiver, speed layer, Airflow")
    settings = platform.up(lambda text: story.say(text), "full")
    airflow = AirflowApi(settings)
    airflow.pause("batch_views", True)  # what happens next is told here, one thing after another

    story.step("A shop writes its changelog to Kafka; the speed layer folds it as it arrives")
    first, everything = Tally(), Tally()
    shop = Shop(seed=1, start=YESTERYEAR, duplicates=0.05, late=0.05, broken=0.01, rate=100)
    with ChangelogProducer(settings) as producer:
        for record in shop.records(20_000):
            producer.send(record)
            first.add(record)
            everything.add(record)
    story.say(f"sent {producer.acknowledged:,} records: {dict(shop.made)}")
    wait(settings)
    story.say("orders there, orders that count, revenue, events:")
    story.check("from the speed layer alone", first_shop(settings), first.answer())

    feed = Feed(settings, everything)
    feed.start()
    watcher = Watcher(settings, first.answer())
    watcher.start()
    story.step("Records keep coming; Airflow runs the batch layer from the beginning: DAG full_recompute")
    wait_for_archiver(settings, end_offsets(settings), ARCHIVER_SECONDS)
    dag_run = airflow.trigger("full_recompute")
    airflow.wait("full_recompute", dag_run, DAG_SECONDS, lambda tasks: story.say(_shown(tasks)))
    differ = airflow.result("full_recompute", dag_run, "compare")
    story.check("rows that differ from what was served", differ.values(), [0] * len(differ))
    number = airflow.result("full_recompute", dag_run, "publish")["publication"]
    with ops.connect(settings) as connection:
        served = next(one for one in current(connection) if one.publication == number)
    story.say(f"publication {number}: batch side up to epoch {served.epoch}, speed side from there on")
    story.check("the same answer, now from both sides", first_shop(settings), first.answer())
    _show_boundary(story, settings)

    story.step("The speed driver is killed with SIGKILL while records keep coming")
    before = _service("speed")["pid"]
    os.kill(before, signal.SIGKILL)
    _until(lambda: _service("speed")["pid"] not in (None, before), 60, "the supervisor did not start it again")
    story.say(f"process {before} is dead, process {_service('speed')['pid']} goes on where it stood")
    wait(settings)
    story.check("the old answer", first_shop(settings), first.answer())
    feed.stop()
    wait(settings)
    story.check(f"everything, {feed.sent:,} records more", ask(settings, before=False), everything.answer())

    story.step("Roll back, and forward again")
    back = publication.rollback(settings, [])
    story.say(f"publication {back.publication} serves what was served before: the speed side alone")
    story.check("everything", ask(settings, before=False), everything.answer())
    publication.release(settings)
    forward = publication.publish(settings, served.run_id)
    story.say(f"publication {forward.publication} serves run {served.run_id} again")
    story.check("everything", ask(settings, before=False), everything.answer())
    watcher.stop()
    if watcher.wrong:
        raise DemoError(f"of {watcher.asked} answers meanwhile, {len(watcher.wrong)} were wrong: {watcher.wrong[:3]}")
    story.say(f"[green]✓[/green] the first shop's answer was asked {watcher.asked} times meanwhile, and never differed")

    story.step("Verify: the log is folded anew and compared row by row with archive and views")
    report = spark_job("serving.verify", [], "verify", (0, 1))
    if report["differences"]:
        raise DemoError("verify: " + "; ".join(report["differences"]))
    story.say(f"[green]✓[/green] exact: log {report['records']}, rows compared {report['compared']}")
    airflow.pause("batch_views", False)
    _what_next(story, home)


def _shown(tasks: dict[str, str]) -> str:
    return "  ".join(f"{task}: {'waiting' if state == 'None' else state}" for task, state in tasks.items())


def _own_home(story: Story) -> Path:
    """The demo's home, empty: what an earlier demo left there is ended and removed."""
    home = home_directory() / "demo"
    os.environ["ANABRANCH_HOME"] = str(home)
    if home.exists():
        platform.down(lambda text: story.say(text))
        shutil.rmtree(home)
    return home


def _service(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in platform.status()["services"] if one["name"] == name)
    return found


def _until(condition: Callable[[], bool], seconds: float, failure: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DemoError(failure)
        time.sleep(0.2)


def _show_boundary(story: Story, settings: Settings) -> None:
    columns, rows = trino.execute(
        trino.connect(settings),
        "SELECT view, publication, generation, epoch, batch_records, speed_records FROM serving.boundary ORDER BY view",
    )
    story.table(columns, rows)


def _what_next(story: Story, home: Path) -> None:
    story.step("It goes on running. Look at it, and try")
    services = platform.status()["services"]
    resident = sum(_memory(one["pid"]) for one in services if one["pid"]) / 2**30
    story.table(["service", "where"], [(one["name"], one["url"]) for one in services])
    login = next(one for one in services if "user" in one)
    story.say(f"{login['name']}: user {login['user']}, password {login['password']}")
    story.say(f"together they hold {resident:.1f} GiB of memory\n")
    command = f"ANABRANCH_HOME={_short(home)} {_short(Path(sys.argv[0]))}"
    for text in (
        'query "SELECT * FROM serving.revenue ORDER BY revenue DESC LIMIT 5"',
        "boundary",
        "explain revenue",
        "simulate --rate 500 --seconds 30 --seed 7",
        "batch",
        "verify",
        "down",
    ):
        typer.echo(f"   {command} {text}")


def _short(path: Path) -> str:
    """A path as one would type it here."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _memory(pid: int) -> int:
    """Resident bytes of a process and its children."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0
