"""The command that says who wrote what."""

import sys
from datetime import UTC
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from changelog import exact
from changelog.positions import to_json
from infra.commands_views import AsJson, Spinner
from runtime.settings import Settings
from serving.audit import Answer, Question, Record
from serving.audit import audit as ask

SHOWN = 100
"""Rows of a table, if nothing else is said."""


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(audit)


def audit(
    service: Annotated[str | None, typer.Option(help="what this service wrote")] = None,
    identifier: Annotated[str | None, typer.Option(help="what was written under this identifier")] = None,
    order: Annotated[str | None, typer.Option(help="every version of this order")] = None,
    guest: Annotated[str | None, typer.Option(help="everything about this guest")] = None,
    limit: Annotated[
        int | None, typer.Option(help=f"the newest so many, 0: all; default {SHOWN} in a table, all as JSON", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who wrote what: the records of the log that fit all that is given, in the order of the log.

    Each row says topic, partition, offset, time, kind, service and identifier. The archive answers up to its position
    (the same in SQL: ops.audit), and Kafka from there to the end of what was acknowledged when the command began.

    Examples: anabranch audit --order o-1; anabranch audit --service shop --guest g-1 --json
    """
    question = Question(service, identifier, order, guest)
    with Spinner("audit"):
        answer = ask(Settings(), question, limit or None if limit is not None or as_json else SHOWN)
    for stretch in answer.missing:
        typer.echo(f"MISSING {stretch}: neither archived nor in Kafka; ingest it first: anabranch batch", err=True)
    if as_json:
        typer.echo(exact.text_of(_json(answer)).decode())
    else:
        _print(answer)
    if answer.missing:
        raise typer.Exit(1)


def _json(answer: Answer) -> dict[str, Any]:
    return {
        "total": answer.total,
        "records": [record.to_json() for record in answer.records],
        "archived": to_json(answer.archived),
        "end": to_json(answer.end),
        "missing": answer.missing,
    }


def _print(answer: Answer) -> None:
    table = Table("appended (UTC)", "place", "kind", "of", "service", "identifier", "change")
    for record in answer.records:
        table.add_row(
            f"{record.append_time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3],
            str(record.place),
            record.kind,
            escape(f"{record.entity} {record.ref or '?'} of guest {record.guest or '?'}"),
            escape(record.service or ""),
            escape(record.identifier or ""),
            escape(said_of(record)),
        )
    Console(width=None if sys.stdout.isatty() else 240).print(table)
    below, end = (sum(sum(parts.values()) for parts in vector.values()) for vector in (answer.archived, answer.end))
    typer.echo(
        f"{len(answer.records)} of {answer.total}; everything acknowledged: {below:,} offsets from the archive, "
        f"{end - below:,} from Kafka"
    )


def said_of(record: Record) -> str:
    """What a record changed, in a few words."""
    if record.reason is not None:
        to = f"; replayed to {record.replayed_to}" if record.replayed_to else ""
        return f"bad: {record.reason}{to}"
    before, now = record.original, record.current
    parts = [f"was the dead letter {record.dead_letter}"] if record.dead_letter else []
    if record.change != "update" or not isinstance(before, dict) or not isinstance(now, dict):
        return "; ".join([record.change or "", *parts])
    for name in now | before:
        if name != "modified_at" and now.get(name) != before.get(name):
            values = (before.get(name), now.get(name))
            plain = not any(isinstance(value, dict | list) for value in values)
            parts.append(f"{name} {values[0]} → {values[1]}" if plain else f"{name} changed")
    return "update: " + "; ".join(parts) if parts else "update"
