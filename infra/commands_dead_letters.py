"""Commands about bad records: which there are, take them out, bring them back mended."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batch.backup import backup
from changelog.dead_letters import line_of
from changelog.positions import to_json
from changelog.records import Place
from changelog.sources import load
from infra.commands_log import report
from infra.commands_views import AsJson, Spinner
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, Settings, topic_of
from serving import dead_letters as kept
from serving import letter_replay
from serving.dead_letters import State, Wanted

SHOWN = 100
"""Rows of a table, if nothing else is said."""

Topic = Annotated[str | None, typer.Option(help="only this topic, for example changelog.order or order")]
Reason = Annotated[str | None, typer.Option(help="only those whose reason has this text in it")]
Since = Annotated[str | None, typer.Option(help="only those appended at or after this time, ISO 8601 (UTC)")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    letters = typer.Typer(help="Bad records: look, take out, mend, bring back.", no_args_is_help=True)
    letters.command("list")(list_)
    for command in (show, export, replay):
        letters.command()(command)
    app.add_typer(letters, name="dead-letters")


def list_(
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    state: Annotated[State, typer.Option(help="open: not brought back yet")] = State.all,
    limit: Annotated[
        int | None, typer.Option(help=f"at most so many, 0: all; default {SHOWN} in a table, all as JSON", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the bad records that the layers have found, newest first, and what became of them.

    Example: anabranch dead-letters list --topic order --reason status --state open
    """
    most = limit or None if limit is not None or as_json else SHOWN
    total, found = kept.listed(Settings(), _wanted(topic, reason, since, state), most)
    if as_json:
        typer.echo(json.dumps([_json(one) for one in found]))
        return
    table = Table("topic", "partition", "offset", "appended (UTC)", "reason", "replayed to")
    for one in found:
        place, time = one.place, f"{one.append_time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        reason_ = escape(one.reason)
        table.add_row(place.topic, str(place.partition), str(place.offset), time, reason_, one.replayed_to or "")
    Console(width=None if sys.stdout.isatty() else 240).print(table)
    typer.echo(f"{len(found)} of {total}")


def show(
    topic: Annotated[str, typer.Argument(help="changelog.order, or order")],
    partition: int,
    offset: int,
    as_json: AsJson = False,
) -> None:
    """Show one bad record whole: reason, key, value, where it is kept, and what became of it.

    Example: anabranch dead-letters show changelog.order 2 17
    """
    letter, one, places = kept.letter(Settings(), Place(_topic(topic), partition, offset))
    told: dict[str, Any] = {**orjson.loads(line_of(letter)), **_json(one), "kept": places}
    if as_json:
        typer.echo(json.dumps(told, ensure_ascii=False))
        return
    del told["envelope"]
    for name, value in told.items():
        text = "; ".join(value) if isinstance(value, list) else "" if value is None else str(value)
        typer.echo(f"{name}: {text if text.isprintable() else json.dumps(text, ensure_ascii=False)}")


def export(
    file: Annotated[str, typer.Argument(help="is written, unless something is in it already; - is standard output")],
    topic: Topic = None,
    reason: Reason = None,
    since: Since = None,
    state: Annotated[State, typer.Option(help="by default those that have not been brought back")] = State.open,
) -> None:
    """Write bad records as JSON lines, to be mended in an editor: change `envelope`, leave the rest.

    key and value are text, or base64 where they are not UTF-8; key_encoding and value_encoding say which. Where the
    value is not even JSON, envelope is null: write it, or mend the value. Lines that stay as they are do no harm.

    Example: anabranch dead-letters export letters.jsonl --topic order
    """
    with _written(file) as out:
        letters = kept.letters(Settings(), _wanted(topic, reason, since, state))
        for letter in letters:
            out.write(line_of(letter) + b"\n")
    typer.echo(f"{len(letters)} dead letters", err=True)


def replay(
    file: Annotated[str, typer.Argument(help="JSON lines as exported, mended; .gz is unpacked; - is standard input")],
    superseded: Annotated[
        bool, typer.Option("--superseded", help="also versions of what has changed since; they become the newest")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring mended records back to the log, each once.

    Each line is judged anew. What is still bad is refused with its line and the reason and stays what it is; exit
    status 1 if anything was refused. Again, interrupted, or two at once: what is in the log already is not sent.

    Example: anabranch dead-letters replay letters.jsonl
    """
    settings = Settings()

    def tell(number: int, text: str) -> None:
        typer.echo(f"{file}:{number}: {text}", err=True)

    with load.opened(file) as lines, Spinner("replay"):
        done = letter_replay.replay(settings, load.numbered(lines, file), tell, superseded)
    if done.replayed:
        backup(settings)  # what is noted of them is not made again from anything else
    counts = {"replayed": done.replayed, "already": done.already, "refused": done.refused}
    report({**counts, "ends": to_json(done.ends)}, as_json)
    if done.refused:
        raise typer.Exit(1)


def _wanted(topic: str | None, reason: str | None, since: str | None, state: State) -> Wanted:
    return Wanted(_topic(topic) if topic else None, reason, _time(since) if since else None, state)


def _topic(name: str) -> str:
    """``order`` or ``changelog.order`` → ``changelog.order``. Raises TerminalError."""
    for entity in ENTITIES:
        if name in (entity, topic_of(entity)):
            return topic_of(entity)
    raise TerminalError(f"there is no topic {name!r}; there are {', '.join(topic_of(entity) for entity in ENTITIES)}")


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise TerminalError(f"--since {text!r} is not a time in ISO 8601, for example 2026-01-31T12:00:00") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _json(one: kept.Listed) -> dict[str, Any]:
    return {
        **one.place._asdict(), "reason": one.reason, "append_time": one.append_time.isoformat(),
        "size": one.size, "archived": one.archived, "replayed_to": one.replayed_to,
        "replayed_at": one.replayed_at.isoformat() if one.replayed_at else None,
    }  # fmt: skip


@contextmanager
def _written(name: str) -> Iterator[IO[bytes]]:
    """A file that is there whole or not at all. Raises TerminalError rather than write over what may be mended."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    part = path.with_name(f"{path.name}.part")
    try:
        if path.exists() and path.stat().st_size:
            raise TerminalError(f"{name} is there already, and somebody may have mended it: choose another name")
        with part.open("wb") as out:
            yield out
        part.replace(path)
    except OSError as error:
        raise TerminalError(f"{name} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
