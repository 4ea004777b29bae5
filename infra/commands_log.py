"""Commands that write to the log."""

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from changelog.erased import Erased
from changelog.erasures import recorded
from changelog.positions import to_json
from changelog.producer import ChangelogProducer, Record
from changelog.sources import load as loading
from changelog.sources import online_retail
from changelog.sources.checked import checked
from changelog.sources.simulate import Shop
from runtime import ops
from runtime.settings import Settings

AsJson = Annotated[bool, typer.Option("--json", help="the summary as JSON on standard output")]
Rate = Annotated[float, typer.Option(help="records a second; 0 is as fast as possible")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(load)
    app.command()(simulate)
    replay = typer.Typer(help="Replay a data set into the log.", no_args_is_help=True)
    replay.command("online-retail")(replay_online_retail)
    app.add_typer(replay, name="replay")


def load(
    files: Annotated[list[str], typer.Argument(help="JSON lines; .gz is unpacked; - is standard input")],
    as_json: AsJson = False,
) -> None:
    """Load changes from JSON lines {"entity": "order", "envelope": {…}}; the key is derived.

    A bad line is refused with its number and the reason, the good ones go in; exit status 1 if any was refused.

    Example: anabranch load changes.jsonl
    """
    refused = 0

    def refuse(name: str, number: int, reason: str) -> None:
        nonlocal refused
        refused += 1
        typer.echo(f"{name}:{number}: refused: {reason}", err=True)

    def all_records() -> Iterable[Record]:
        for name in files:
            with loading.opened(name) as lines:
                yield from loading.records(lines, name, refuse, _erased())

    summary = feed(all_records(), 0, "load")
    report(summary | {"refused": refused}, as_json)
    if refused:
        raise typer.Exit(1)


def simulate(
    rate: Rate = 100,
    seconds: Annotated[float | None, typer.Option(help="how long; or say --records")] = None,
    seed: Annotated[int, typer.Option(help="same seed, options and start: same records")] = 1,
    records: Annotated[int | None, typer.Option(help="how many records; or say --seconds")] = None,
    start: Annotated[str | None, typer.Option(help="time of the first record, ISO 8601; default now")] = None,
    duplicates: Annotated[float, typer.Option(help="share of records that are sent again", min=0, max=1)] = 0,
    late: Annotated[float, typer.Option(help="share of events that happened hours or days ago", min=0, max=1)] = 0,
    broken: Annotated[float, typer.Option(help="share of broken records put in between", min=0, max=1)] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a deterministic shop: guests browse, order, amend, cancel, delete.

    Example: anabranch simulate --rate 500 --seconds 60 --seed 7 --late 0.05
    """
    if records is None and (seconds is None or rate <= 0):
        raise typer.BadParameter("say how much: --records N, or --seconds S with a --rate above 0")
    wanted = records if records is not None else int(rate * (seconds or 0))
    shop = Shop(seed, start=start, duplicates=duplicates, late=late, broken=broken, rate=rate)
    erased, left = _erased(), 0

    def of_others() -> Iterable[Record]:
        nonlocal left
        for record in shop.records(wanted):
            if erased.has(record.key):
                left += 1
            else:
                yield record

    summary = feed(of_others(), rate, "simulate")
    report(summary | {"made": dict(shop.made)} | ({"erased": left} if left else {}), as_json)


def replay_online_retail(
    path: Annotated[Path, typer.Option(help="online_retail.csv.gz", exists=True, dir_okay=False)],
    rate: Rate = 0,
    as_json: AsJson = False,
) -> None:
    """Replay the UCI Online Retail data set: 25,900 orders (created, then paid) and 541,909 events.

    What would not be valid is refused with the reason, the others go in; exit status 1 if anything was refused.

    Example: anabranch replay online-retail --path online_retail.csv.gz
    """
    refused = 0

    def refuse(record: Record, reason: str) -> None:
        nonlocal refused
        refused += 1
        identifier = json.loads(record.value or b"")["provenance"]["identifier"]
        typer.echo(f"{path}: {record.topic}, {identifier}: refused: {reason}", err=True)

    summary = feed(checked(online_retail.records(path), refuse, _erased()), rate, "replay")
    report(summary | {"refused": refused}, as_json)
    if refused:
        raise typer.Exit(1)


def _erased() -> Erased:
    """The guests of whom nothing goes in."""
    settings = Settings()
    with ops.connect(settings) as connection:
        return recorded(settings, connection, pending=False)


def feed(records: Iterable[Record], rate: float, what: str) -> dict[str, object]:
    """Send records and return the summary. Interrupted, it waits for what was sent, says so, and exits with 130."""
    began = time.monotonic()
    interrupted = False
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=None)
        with ChangelogProducer(Settings(), rate) as producer:
            try:
                for record in records:
                    producer.send(record)
                    if producer.sent % 1000 == 0:
                        progress.update(task, description=f"{what}: {producer.sent:,} records")
            except KeyboardInterrupt:
                interrupted = True
    seconds = time.monotonic() - began
    summary: dict[str, object] = {
        "acknowledged": producer.acknowledged,
        "seconds": round(seconds, 3),
        "records_per_second": round(producer.acknowledged / seconds) if seconds else 0,
        "ends": to_json(producer.ends),
    }
    if interrupted:
        report(summary, as_json=False)
        raise typer.Exit(130)
    return summary


def report(summary: dict[str, object], as_json: bool) -> None:
    """Print a summary for people or for machines."""
    if as_json:
        typer.echo(json.dumps(summary))
        return
    for name, value in summary.items():
        typer.echo(f"{name}: {json.dumps(value) if isinstance(value, dict) else value}")
