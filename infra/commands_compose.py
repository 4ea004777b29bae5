"""The command that prepares the platform in containers. Compose starts it; nothing here does."""

from pathlib import Path
from typing import Annotated

import typer

from infra import compose
from infra.compose import ArchiverChoice, ComposeProfile


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(init)


def init(
    profile: Annotated[
        list[ComposeProfile] | None,
        typer.Option(
            help="core, full (Airflow, capture of a database), scale (three brokers, workers); repeatable; remembered",
            show_default=False,
        ),
    ] = None,
    archiver: Annotated[
        ArchiverChoice | None, typer.Option(help="who archives; remembered, at first anabranch", show_default=False)
    ] = None,
    to: Annotated[Path, typer.Option(help="the directory for secrets and configuration")] = Path(".anabranch-compose"),
    env: Annotated[Path, typer.Option(help="the file in which Compose looks for variables")] = Path(".env"),
) -> None:
    """Prepare the platform in containers: write secrets and configuration for docker-compose.yml.

    Again: renders anew what follows from the settings, and keeps secrets, ports and your own lines. To change a
    setting, edit settings.json in that directory and run this again. Then: docker compose up --wait
    """
    profiles = tuple(dict.fromkeys(profile or compose.remembered(env)))
    compose.init(to, env, profiles, archiver)
    typer.echo(f"{' + '.join(profiles)}: secrets and configuration are in {to}, variables in {env}")
    given = "" if env == Path(".env") else f"--env-file {env} "
    typer.echo(f"next: docker compose {given}up --wait")
