"""``anabranch``: the command line. It assembles commands and turns errors into messages; it computes nothing."""

import sys

import typer
from pydantic import ValidationError

from infra import (
    commands_audit,
    commands_cdc,
    commands_command,
    commands_compose,
    commands_dead_letters,
    commands_erasure,
    commands_latest,
    commands_log,
    commands_operations,
    commands_platform,
    commands_schema,
    commands_views,
)
from runtime.errors import AnabranchError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Anabranch: one log, two layers, one answer. Begin with: anabranch demo",
)
for commands in (
    commands_platform,
    commands_compose,
    commands_log,
    commands_command,
    commands_dead_letters,
    commands_schema,
    commands_latest,
    commands_cdc,
    commands_views,
    commands_audit,
    commands_operations,
    commands_erasure,
):
    commands.register(app)


def main() -> None:
    """Entry point. Exit status 1 for an error with a message, 2 for wrong usage, 130 when interrupted."""
    try:
        app()
    except AnabranchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except ValidationError as error:
        typer.echo(f"error: settings: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
