"""Commands about the schemas of the log: may they change like this, and take them over."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from changelog import evolution


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    schema = typer.Typer(help="The schemas of the log, and how they may change.", no_args_is_help=True)
    schema.command("check")(check)
    schema.command("release")(release)
    app.add_typer(schema, name="schema")


def check(as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False) -> None:
    """Compare changelog/schemas with what was released; exit status 1 if a change is incompatible.

    A new optional property is compatible. What is wider (a new enum value, a looser bound) is allowed with a note:
    readers first, writers afterwards. Everything else is refused, with its JSON path and a remedy.
    """
    differences = evolution.check()
    refused = [difference for difference in differences if difference.refused]
    if as_json:
        typer.echo(json.dumps({"compatible": not refused, "differences": [asdict(one) for one in differences]}))
    else:
        for difference in differences:
            typer.echo(f"{'REFUSED' if difference.refused else 'allowed'} {difference}", err=difference.refused)
    if refused:
        raise typer.Exit(1)
    evolution.check_readable()
    if not as_json:
        typer.echo("compatible with what was released")
        if changed := evolution.unreleased():
            typer.echo(f"not released yet: {', '.join(changed)}; take it over: anabranch schema release")


def release() -> None:
    """Check, and make the schemas the released ones: what the next change is compared with.

    To be committed together with the change. Nothing is released if a change is incompatible. Again: nothing changes.
    """
    evolution.check_readable()
    for difference in evolution.release():
        typer.echo(str(difference))
    typer.echo("released")
