"""Commands about the newest versions: ``latest.<entity>``."""

import json
from collections.abc import Callable
from typing import Annotated

import typer

from changelog.archive.ranges import Hole
from changelog.derive import state
from changelog.derived import DERIVED, GROUP, derived_topics
from changelog.exact import text_of
from changelog.latest import Update, updates
from changelog.rebuild import rebuild as derive_again
from changelog.topics import delete_group, delete_topics, ensure_topics
from infra import supervise
from infra.commands_views import AsJson
from runtime.settings import Settings

Follow = Annotated[bool, typer.Option("-f", "--follow", help="go on with what comes")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    latest = typer.Typer(
        no_args_is_help=True,
        help="The newest version of every guest, session or order, read from its compacted topic.",
    )
    for entity in DERIVED:
        latest.command(entity, help=_HELP.format(entity=entity))(_shows(entity))
    latest.command("rebuild")(rebuild)
    app.add_typer(latest, name="latest")


_HELP = """Show the newest version of every {entity}: latest.{entity} from its beginning to its end.

    With --json a line for each, {{"ref", "partition", "offset", "serviceName", "identifier", "current"}}: offset and
    partition are those of the record of changelog.{entity} that said so. With --follow it goes on until it is
    interrupted; a deleted one has current null.

    Example: anabranch latest {entity} --json --follow
    """


def _shows(entity: str) -> Callable[[bool, bool], None]:
    def show(follow: Follow = False, as_json: AsJson = False) -> None:
        for update in updates(Settings(), entity, follow):
            typer.echo(line(update, as_json))

    return show


def line(update: Update, as_json: bool) -> str:
    """An update as a line of JSON, or for people."""
    said = update.version
    if not as_json:
        return f"{update.ref}  {text_of(said.current).decode() if said else 'deleted'}"
    return text_of({
        "ref": update.ref, "partition": update.partition, "offset": update.offset,
        "serviceName": said and said.service, "identifier": said and said.identifier, "current": said and said.current,
    }).decode()  # fmt: skip


def rebuild(
    anew: Annotated[
        bool, typer.Option("--anew", help="make all derived topics anew, and fill them from the beginning of the log")
    ] = False,
    accept_hole: Annotated[
        list[str] | None, typer.Option(help="TOPIC/PARTITION/FIRST-LAST: offsets that are lost for good")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Derive what the service derive missed because Kafka has let go of it, from the raw archive.

    Stops the service, brings latest.* and patch.* up to where Kafka begins, version for version, and starts the service
    again. What is not missing is left as it is; killed, it is run again. With --anew consumers have to begin anew too.
    """
    settings = Settings()
    accept = [Hole.parse(text) for text in accept_hole or []]
    supervised = supervise.is_running(settings)
    if supervised:
        supervise.stop_services(settings, ["derive"])
    try:
        if anew:
            make_anew(settings)
        done = derive_again(settings, accept)
    finally:
        if supervised:
            supervise.start_service(settings, "derive")
    if as_json:
        typer.echo(json.dumps({str(missed): records for missed, records in done.items()}))
        return
    for missed, records in done.items():
        typer.echo(f"{missed}: {records:,} records of the archive")
    if not done:
        typer.echo("Kafka has everything that is not derived yet")


def make_anew(settings: Settings) -> None:
    """Replace the derived topics by empty ones. Killed anywhere, the service goes on as before or says that this has to
    be run again: what it knows of the old topics goes last."""
    delete_group(settings, GROUP)
    delete_topics(settings, derived_topics(settings))
    ensure_topics(settings, (), derived_topics(settings))
    (state(settings) / "topic-ids.json").unlink(missing_ok=True)
