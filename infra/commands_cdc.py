"""Commands about the operational shop, and about capturing its changes."""

import contextlib
import json
import sys
import time
from typing import Annotated

import psycopg
import typer
from rich.console import Console
from rich.table import Table

from changelog.sources.cdc import capture
from changelog.sources.cdc.mapping import TABLES
from changelog.sources.shop.application import Application
from infra import commands_views
from infra.commands_log import AsJson, report
from infra.commands_platform import say
from runtime.errors import TerminalError, TransientError
from runtime.settings import Settings
from serving import drift as drifting


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(shop)
    app.command()(drift)
    cdc = typer.Typer(
        no_args_is_help=True,
        help="Capture of the shop's database: read tables again, or begin anew. How far it is: anabranch status",
    )
    cdc.command()(snapshot)
    cdc.command()(anew)
    app.add_typer(cdc, name="cdc")


def shop(
    rate: Annotated[float, typer.Option(help="transactions a second", min=0.01)] = 20,
    seconds: Annotated[float, typer.Option(help="how long", min=0)] = 60,
    seed: Annotated[int, typer.Option(help="same seed on the same rows: same doings")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run the shop's application on its database: people order, amend, cancel, move, and clerks renumber and delete.

    It writes to PostgreSQL and nowhere else; the changes reach the log through capture (profile full). Transactions go
    over several tables, some are rolled back. It goes on with what is there.

    Example: anabranch shop --rate 50 --seconds 60 --seed 7
    """
    settings = Settings()
    _needs_full(settings)
    began = time.monotonic()
    try:
        with psycopg.connect(settings.shop.dsn, autocommit=True, connect_timeout=5) as connection:
            application = Application(connection, seed)
            try:
                application.run(rate, seconds)
            except KeyboardInterrupt:
                typer.echo("interrupted; what was committed stays", err=True)
    except psycopg.OperationalError as error:
        raise TransientError(f"the shop's database does not answer ({error}): anabranch status") from error
    report(
        {
            "transactions": sum(application.done.values()),
            "abandoned": application.abandoned,
            "seconds": round(time.monotonic() - began, 3),
            "done": dict(application.done),
        },
        as_json,
    )


def drift(
    look: Annotated[bool, typer.Option("--look", help="compare, and write nothing")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="where it is major: read the database whole and fold the log anew")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the shop's database with the merged views, row by row, and mend what has drifted.

    A few rows of an entity (minor) are sent through the stream again, and what differs from the log is written. Many
    (drift.republish_at_most), or views that are not what the log says (major), need --rebuild. Airflow does it every
    hour; what was found is in ops.public.drift. Exit status 1 if anything major is left.

    Example: anabranch drift --look
    """
    settings = Settings()
    _needs_full(settings)
    if look and rebuild:
        raise typer.BadParameter("--look writes nothing, so there is nothing to rebuild")
    if look:
        found = drifting.measure(settings)
    else:
        found = drifting.mend(settings, lambda text: typer.echo(text, err=True), rebuild)
    major = [one.entity for one in found.values() if one.severity == "major"]
    if major and rebuild:
        typer.echo(f"the shop's database is read whole (request {drifting.reread(settings)})", err=True)
        with contextlib.redirect_stdout(sys.stderr):
            commands_views.batch(full=True)
        found = drifting.measure(settings)
        major = [one.entity for one in found.values() if one.severity == "major"]
    if as_json:
        typer.echo(json.dumps({entity: one.to_json() for entity, one in found.items()}))
    else:
        table = Table("entity", "compared", "missing", "extra", "changed", "refused", "moving", "severity", "action")
        for one in found.values():
            table.add_row(
                one.entity, *(f"{n:,}" for n in (one.compared, one.missing, one.extra, one.changed, one.refused,
                                                 one.moving)), one.severity, one.action,
            )  # fmt: skip
        Console().print(table)
        for one in found.values():
            for example in one.examples:
                typer.echo(f"{example['ref']}: {example['kind']} ({', '.join(example['columns'])})")
    if major:
        raise typer.Exit(1)


def snapshot(
    tables: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(TABLES)}; none: all")] = None,
    as_json: AsJson = False,
) -> None:
    """Read tables whole again, beside the stream, and write what differs from the log, deletes among it.

    For a column that is newly mapped, or where the log may lack something. Orders and their items are read together. It
    asks and returns; `anabranch status` shows when it is done.

    Example: anabranch cdc snapshot customers
    """
    settings = Settings()
    _needs_full(settings)
    request = capture.snapshot(settings, tables or [])
    typer.echo(json.dumps({"request": request}) if as_json else f"requested: {request}")


def anew() -> None:
    """Begin capture anew: another replication slot, and the whole database read again; what differs is written.

    For a database that was restored, a stream that was lost, or offsets that were: what cannot be gone on from. Nothing
    is written twice, and what was deleted meanwhile is deleted in the log. Killed, it is run again.
    """
    settings = Settings()
    _needs_full(settings)
    capture.anew(settings, say)


def _needs_full(settings: Settings) -> None:
    if settings.profile != "full":
        raise TerminalError("the shop's database and its capture are part of profile full: anabranch up --profile full")
