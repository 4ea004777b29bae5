"""Commands that erase a guest for good, and prove it."""

import json
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from batch.backup import backup
from batch.erasure import (
    Proof,
    clean,
    ensure_published,
    finish,
    is_generation_ready,
    is_published,
    list_all,
    number_of,
    prove,
    row_of,
)
from infra.commands_views import AsJson, Spinner, spark_job
from runtime import ops
from runtime.errors import ConflictError, TransientError
from runtime.settings import Settings
from serving import publication
from serving.erasure import narrow, request

READY_SECONDS = 600.0


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("erase-guest")(erase_guest)
    app.command()(erasures)


def erase_guest(
    ref: Annotated[str | None, typer.Argument(help="the guest's ref")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with every erasure that is not done")] = False,
    purge_log: Annotated[
        bool, typer.Option("--purge-log", help="let Kafka forget everything up to the guest's last record now")
    ] = False,
    despite_source: Annotated[
        bool, typer.Option("--despite-source", help="although the shop's database still has the guest")
    ] = False,
    proof: Annotated[
        bool, typer.Option("--prove", help="search every store for the guest, and change nothing")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a guest for good: log, archive, views, snapshots, state, backups; then search every store for the guest.

    The guest is hidden at once, and nothing of theirs is taken any more. Kafka keeps records until its retention has
    passed: the command ends by saying what is waited for, and the same command, or --resume, finishes it later. Killed
    anywhere, it is run again. It cannot be taken back. Exit status 1 while something is found.

    Examples: anabranch erase-guest g-1; anabranch erase-guest g-1 --prove; anabranch erase-guest --resume
    """
    settings = Settings()
    if proof:
        if ref is None:
            raise typer.BadParameter("say whom: anabranch erase-guest REF --prove")
        with Spinner("search"):
            found = prove(settings, ref, number_of(settings, ref))
        _say(found, as_json)
        raise typer.Exit(1 if found.found else 0)
    if resume == (ref is not None):
        raise typer.BadParameter("say whom, or --resume")
    if ref is not None:
        numbers = [request(settings, ref, purge_log, despite_source)]
        backup(settings)  # a restore must not forget who is to be forgotten
    else:
        numbers = [row["erasure"] for row in list_all(settings) if row["state"] != "done"]
        if purge_log:
            with ops.connect(settings) as connection:
                connection.execute("UPDATE erasures SET purge = true WHERE erasure = ANY(%s)", (numbers,))
    left = 0
    for number in numbers:
        typer.echo(f"erasure {number}", err=as_json)
        last = drive(settings, number)
        _say(last, as_json)
        left += len(last.found)
    if left:
        raise typer.Exit(1)


def drive(settings: Settings, erasure: int) -> Proof:
    """Take an erasure from where it stands as far as it goes now; what the last search found."""
    try:
        return _finished(settings, erasure, again=False)
    except ConflictError:  # something came to the archive while it was rewritten
        return _finished(settings, erasure, again=True)


def _finished(settings: Settings, erasure: int, again: bool) -> Proof:
    _rewrite(settings, erasure, again)
    narrow(settings, erasure)
    return finish(settings, erasure)


def _rewrite(settings: Settings, erasure: int, again: bool) -> None:
    with ops.connect(settings) as connection:
        row = row_of(connection, erasure)
    if row["state"] == "done" or (row["state"] == "waiting" and not again):
        return
    if row["state"] == "requested":
        publication.refresh(settings)  # who was killed as it was requested has not hidden the guest
    if row["state"] == "requested" and not is_published(settings, erasure):
        with Spinner("waiting for a generation of the speed layer without the guest"):
            _await_generation(settings, erasure)
        run = f"erasure_{erasure}"
        spark_job("batch.run", ["--full", "--run-id", run, "--erasures", str(erasure)], "erasure-batch", (0, 3))
        ensure_published(settings, erasure, lambda: publication.publish(settings, run, back=True))
    if row["state"] != "rewritten":
        spark_job("batch.erase", ["--erasure", str(erasure)], "erase")
        clean(settings, erasure)
    publication.refresh(settings)
    with Spinner("waiting for derive"):
        _await_derive(settings, erasure)


def _await_generation(settings: Settings, erasure: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_generation_ready(settings, erasure):
        if time.monotonic() > deadline:
            raise TransientError(
                "the speed layer has not begun a generation without the guest: anabranch status, anabranch logs speed; "
                "then: anabranch erase-guest --resume"
            )
        time.sleep(0.5)


def _await_derive(settings: Settings, erasure: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with ops.connect(settings) as connection:
        while row_of(connection, erasure)["derived_at"] is None:
            if time.monotonic() > deadline:
                raise TransientError(
                    "derive has not taken the newest versions away: anabranch status, anabranch logs derive; then: "
                    "anabranch erase-guest --resume"
                )
            time.sleep(0.5)


def erasures(as_json: AsJson = False) -> None:
    """List the erasures: how far each is, and what is left of it. Who it was is in none of this."""
    rows = list_all(Settings())
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    table = Table("erasure", "state", "requested", "finished", "records", "found in the last search")
    for row in rows:
        counts = ", ".join(f"{topic}: {sum(kinds.values())}" for topic, kinds in row["records"].items())
        found = ", ".join(f"{one['store']}: {one['number']}" for one in row["found"])
        when = (f"{time:%Y-%m-%d %H:%M}" if time else "" for time in (row["requested_at"], row["finished_at"]))
        table.add_row(str(row["erasure"]), row["state"], *when, counts, found)
    Console().print(table)


def _say(proof: Proof, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(proof.to_json()))
        return
    if not proof.stores:
        typer.echo("done already")
        return
    table = Table("store", "searched", "found", "places")
    for store in proof.stores:
        table.add_row(store.store, f"{store.searched:,}", str(store.number), ", ".join(store.places[:5]))
    Console(width=160).print(table)
    for remark in proof.remarks:
        typer.echo(remark)
    for one in proof.waiting:
        typer.echo(f"waiting for Kafka's retention: {one}")
    typer.echo("nothing is found" if not proof.found else f"found in {len(proof.found)} stores")
