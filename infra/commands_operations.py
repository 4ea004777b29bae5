"""Commands for whoever looks after the platform: maintenance, lag, backup and restore."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from batch import backup as backups
from infra import platform
from infra.commands_platform import say
from infra.commands_views import AsJson, spark_job
from runtime.settings import Settings
from serving import watch as watching


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (maintenance, drop, watch, backup, restore):
        app.command()(command)


def maintenance(
    orphans: Annotated[bool, typer.Option("--orphans", help="look for orphan files now, not only once a day")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep queries fast and the lake small: retire old publications, delete what they needed, expire snapshots.

    It runs while everything else goes on. Airflow does it on a schedule.
    """
    report = spark_job("batch.maintenance", ["--orphans"] if orphans else [], "maintenance")
    if as_json:
        typer.echo(json.dumps(report))
        return
    table = Table("table", "data files", "snapshots")
    for name, now in report.pop("tables").items():
        table.add_row(name, str(now["files"]), str(now["snapshots"]))
    for name, value in report.items():
        typer.echo(f"{name.replace('_', ' ')}: {value}")
    Console().print(table)


def drop(
    what: Annotated[str, typer.Argument(help="archive.order, …, or a location of runs beside what is served")],
    as_json: AsJson = False,
) -> None:
    """Delete tables that can be made anew, with their files: one of the columnar archive, or those at a location.

    What is served does not notice. The next batch run reads the raw objects again.
    """
    dropped = spark_job("batch.drop", [what], "drop")["dropped"]
    typer.echo(json.dumps({"dropped": dropped}) if as_json else f"dropped: {', '.join(dropped)}")


def watch(as_json: AsJson = False) -> None:
    """Measure how far archiver, derive, speed, ingest and boundary are behind; tell of what is beyond its limit."""
    found = watching.watch(Settings())
    if as_json:
        typer.echo(json.dumps({"lag": found.lag, "alerts": found.alerts}))
        return
    table = Table("component", "records behind", "seconds behind")
    for component, lag in found.lag.items():
        table.add_row(component, f"{lag['records']:,}", str(lag["behind_seconds"]))
    Console().print(table)
    for message in found.alerts.values():
        typer.echo(f"ALERT {message}")


def backup(as_json: AsJson = False) -> None:
    """Take a backup of the catalog and of the operations database, into the lake's bucket."""
    _say_backup(backups.backup(Settings()), as_json)


def restore(as_json: AsJson = False) -> None:
    """Put catalog and operations database back to the newest backup, and every table of the lake to its newest state.

    The platform has to be down. Afterwards: anabranch up, anabranch verify.
    """
    _say_backup(platform.restore(say), as_json)


def _say_backup(done: backups.Backup, as_json: bool) -> None:
    said: dict[str, Any] = {"name": done.name, "rows": done.rows, "moved": done.moved}
    if as_json:
        typer.echo(json.dumps(said))
        return
    typer.echo(f"{done.name}: {sum(done.rows.values())} rows of {len(done.rows)} tables")
    if done.moved:
        typer.echo(f"tables of the lake that went on since: {', '.join(done.moved)}")
