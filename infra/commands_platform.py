"""Commands that start, stop and show the local platform."""

import json
import os
import subprocess
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from infra import platform, supervise
from infra.demo import run as story
from runtime.errors import TerminalError
from runtime.settings import Profile, Settings

_began = time.monotonic()


def say(text: str) -> None:
    """A line of progress, on standard error, with the seconds since the command began."""
    typer.echo(f"{time.monotonic() - _began:6.1f} s  {text}", err=True)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    app.command()(logs)
    app.command()(demo)


def up(
    profile: Annotated[
        Profile | None, typer.Option(help="full adds Airflow; remembered, at first core", show_default=False)
    ] = None,
) -> None:
    """Start the platform and wait until it answers. Again: starts what does not run.

    The first time it fetches what is missing into ~/.cache/anabranch (about 1 GB; $ANABRANCH_CACHE puts it
    elsewhere). Everything it keeps is in $ANABRANCH_HOME (default .anabranch).
    """
    platform.up(say, profile)
    _table()


def down() -> None:
    """Stop every process of this home. Its data stays, and `anabranch up` goes on with it."""
    platform.down(say)


def status(as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False) -> None:
    """Show the services and where to look at them; what is served, how fresh it is, and what runs next.

    In a container it leaves the services to `docker compose ps`.
    """
    if "ANABRANCH_SETTINGS" in os.environ:
        typer.echo(json.dumps(platform.situation())) if as_json else _situation(platform.situation())
    elif as_json:
        typer.echo(json.dumps({**platform.status(), **platform.situation()}))
    else:
        _table()
        _situation(platform.situation())


def logs(
    name: Annotated[str, typer.Argument(help="a service, as `anabranch status` names it")],
    lines: Annotated[int, typer.Option("-n", "--lines")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on as it grows")] = False,
) -> None:
    """Show what a service wrote. Example: anabranch logs speed -f

    A container does not see what others write: there it says which command of Compose does.
    """
    if "ANABRANCH_SETTINGS" in os.environ:
        follows = "-f " if follow else ""
        raise TerminalError(f"outside of the container: docker compose logs -n {lines} {follows}{name}")
    path = supervise.log_path(Settings(), name)
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.log"))) or "none yet"
        raise TerminalError(f"no log of {name!r}; there are: {known}")
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)], check=False)


def demo() -> None:
    """Tell the whole story on generated data, in a home of its own, and leave the platform running.

    It checks its own numbers and ends with exit status 1 if one is wrong. Its home is `demo` in $ANABRANCH_HOME; what
    an earlier demo left there is removed first. Stop it with the command that it prints last.
    """
    story()


def _situation(found: dict[str, Any]) -> None:
    if not found:
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table("view", "publication", "batch side up to", "speed side from", title="served", title_justify="left")
    for one in found["served"]:
        below = sum(sum(partitions.values()) for partitions in one["vector"].values())
        table.add_row(
            one["view"], str(one["publication"]), f"{below:,} records of the log",
            f"epoch {one['epoch']} of generation {one['generation']}",
        )  # fmt: skip
    console.print(table)
    archived = sum(sum(partitions.values()) for partitions in found["archived"].values())
    console.print(f"archived position: {archived:,} records of the log")
    for component, lag in found["lag"].items():
        behind = "?" if lag["behind_seconds"] is None else f"{lag['behind_seconds']:.1f}"
        console.print(f"{component}: {lag['records']:,} records, {behind} s behind (at {lag['measured_at']:.19})")
    for one in found["publications"]:
        console.print(
            f"publication {one['publication']} ({one['kind']}, {one['published_at']:.19}): {', '.join(one['views'])}"
        )
    if found["held"]:
        console.print(f"publication is held since the rollback {found['held']}: anabranch release")
    for dag, at in found["next_runs"].items():
        console.print(f"next run of {dag}: {at or 'none is scheduled'}")
    for message in found["alerts"]:
        console.print(f"ALERT {message}", markup=False)


def _table() -> None:
    found = platform.status()
    table = Table("service", "state", "pid", "where", title=found["home"], title_justify="left")
    for service in found["services"]:
        table.add_row(service["name"], service["state"], str(service["pid"] or ""), service["url"])
    console = Console()
    console.print(table)
    for service in found["services"]:
        if "user" in service:
            console.print(f"{service['name']}: user {service['user']}, password {service['password']}", markup=False)
        if service["name"] == "cdc" and service["detail"] and service["state"] == "running":
            console.print(_capture(service["detail"]), markup=False)
        if service["state"] == "running" and (service["detail"] or {}).get("error"):
            console.print(f"{service['name']}: {service['detail']['error']}", markup=False)
        if service["state"] == "failed":
            console.print(f"{service['name']} failed:\n{service['detail']}", markup=False)


def _capture(said: dict[str, Any]) -> str:
    """A line on what the service ``cdc`` says of connector, slot and snapshots."""
    connector, slot = said.get("connector") or {}, said.get("slot") or {}
    snapshot = "a snapshot is under way" if said.get("snapshot") else "no snapshot is under way"
    if not said.get("whole"):
        snapshot = f"nothing is written before a snapshot is complete, {snapshot}"
    return (
        f"cdc: connector {connector.get('connector', 'not there')}, task {connector.get('task', 'not there')}; "
        f"{slot.get('behind_bytes', 0) / 2**20:.1f} MB of WAL kept; {snapshot}; {said.get('bad', 0)} entities bad"
    )
