"""Commands of the batch and serving layers: build, publish, query, wait, verify."""

import csv
import io
import json
import os
import subprocess
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from batch.backup import backup
from batch.plan import SERVED_LOCATION, Plan, parse_since
from batch.report import EXIT_INCOMPLETE, Report, complain
from changelog.positions import to_json
from infra import supervise
from infra.prepare import topics
from runtime import ops, trino
from runtime.errors import TerminalError
from runtime.settings import Settings
from runtime.version import ROOT
from serving import compare as comparison
from serving import publication, sql
from serving.beside import show
from serving.published import current, history
from serving.wait import deferred
from serving.wait import wait as wait_until
from speed.generation import begin
from views.algebra import View
from views.derived import Derived
from views.matching import Matches
from views.registry import all_views, derived_views, view_named

AsJson = Annotated[bool, typer.Option("--json", help="for machines")]
Views = Annotated[list[str] | None, typer.Argument(help="views; default all")]


class Format(StrEnum):
    """How a query's answer is printed."""

    table = "table"
    json = "json"
    csv = "csv"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (
        batch,
        compare,
        publish,
        publications,
        rollback,
        release,
        boundary,
        views,
        explain,
        query,
        wait,
        verify,
    ):
        app.command()(command)
    generation = typer.Typer(help="Lives of the speed application's code and state.", no_args_is_help=True)
    generation.command("new")(generation_new)
    generation.command("list")(generation_list)
    app.add_typer(generation, name="generation")


def batch(
    full: Annotated[bool, typer.Option("--full", help="fold the whole archive from nothing")] = False,
    view: Annotated[list[str] | None, typer.Option(help="only this view (repeatable)")] = None,
    run_id: Annotated[str | None, typer.Option(help="name of the run; the same name again replaces it")] = None,
    no_publish: Annotated[bool, typer.Option("--no-publish", help="build beside what is served, and stop")] = False,
    patience: Annotated[float, typer.Option(help="seconds to wait for the archiver; 0: take what is there")] = 90,
    objects: Annotated[bool, typer.Option("--objects", help="fold the raw objects, not the columnar archive")] = False,
    location: Annotated[str, typer.Option(help="fold into tables of this name, which are never served")] = "batch",
    since: Annotated[
        str | None, typer.Option(help="with --location: a vector as JSON, or an append time in ISO 8601 (UTC)")
    ] = None,
    accept_hole: Annotated[
        list[str] | None, typer.Option(help="TOPIC/PARTITION/FIRST-LAST: offsets that are lost for good")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the batch layer once: ingest, build, publish.

    It waits until the archiver has stored what was acknowledged when it began, brings the columnar archive up to
    date, folds what is new since the served boundary (--full: everything) and publishes the result in one step.
    """
    for name in view or []:
        view_named(name)
    Plan(run_id=run_id, location=location, since=parse_since(since))  # refused here, before Spark starts
    options = [
        *(["--full"] if full else []),
        *(part for name in view or [] for part in ("--view", name)),
        *(["--run-id", run_id] if run_id else []),
        *(part for hole in accept_hole or [] for part in ("--accept-hole", hole)),
        *(["--objects"] if objects else []),
        *("--location", location),
        *(["--since", since] if since else []),
        *("--patience", str(patience)),
    ]
    result = spark_job("batch.run", options, "batch", (0, EXIT_INCOMPLETE))
    archived, run = result["ingest"], result["run"]
    if not as_json:
        typer.echo(f"ingested: {archived['records'] or 'nothing new'} in {archived['seconds']} s")
        typer.echo(f"built: run {run['run_id']} ({run['kind']}) up to epoch {run['epoch']} in {run['seconds']} s")
    beside = location != SERVED_LOCATION
    rows = show(Settings(), run["run_id"]) if beside else {}
    published = None if no_publish or beside else publication.publish(Settings(), run["run_id"], back=full)
    if published and published.publication:
        backup(Settings())
    if as_json:
        typer.echo(json.dumps({**result, "publication": published.publication if published else None}))
    elif published:
        _say_published(published)
    for name, number in rows.items():
        typer.echo(f"lake.{location}.{name}: {number:,} rows", err=as_json)
    complain(Report(**archived))


def compare(
    run: Annotated[str, typer.Argument(help="a finished run that is not published (anabranch batch --no-publish)")],
    as_json: AsJson = False,
) -> None:
    """Show what publishing a finished run would change, row by row, at one cut of the log."""
    report = comparison.compare(Settings(), run)
    typer.echo(json.dumps(report.to_json(), default=str) if as_json else comparison.described(report))


def publish(
    run: Annotated[str | None, typer.Argument(help="a finished run; default the newest")] = None,
) -> None:
    """Publish a finished run: its batch side and the boundary with it, in one step for each view."""
    _say_published(publication.publish(Settings(), run, back=run is not None))
    backup(Settings())


def rollback(
    names: Views = None,
    to: Annotated[int | None, typer.Option(help="a publication, as `anabranch publications` lists them")] = None,
) -> None:
    """Serve what was served before, and hold publication until `anabranch release`. Again: one further back."""
    _say_published(publication.rollback(Settings(), names or [], to))
    backup(Settings())
    typer.echo("publication is held; let it go on with: anabranch release")


def publications(as_json: AsJson = False) -> None:
    """List the publications that `rollback --to` can go back to, newest first, and what each view serves now."""
    with ops.connect(Settings()) as connection:
        rows = history(connection)
    columns = list(rows[0]) if rows else []
    _print(columns, [list(row.values()) for row in rows], Format.json if as_json else Format.table)


def release() -> None:
    """Let publication go on after a rollback."""
    typer.echo("released" if publication.release(Settings()) else "it was not held")


def boundary(as_json: AsJson = False) -> None:
    """Show where each view's batch side ends and its speed side begins."""
    columns, rows = trino.execute(trino.connect(Settings()), "SELECT * FROM serving.boundary ORDER BY view")
    _print(columns, rows, Format.json if as_json else Format.table)


def views(
    markdown: Annotated[bool, typer.Option("--markdown", help="as the page docs/views.md, columns and all")] = False,
) -> None:
    """List the views."""
    if markdown:
        typer.echo(views_page(), nl=False)
        return
    table = Table("view", "of", "reads", "what it is")
    for view in all_views():
        table.add_row(view.name, view.entity, ", ".join(read.name for read in view.reads), view.comment)
    for derived in derived_views():
        columns = ", ".join(column.name for column in derived.columns)
        table.add_row(derived.name, ", ".join(derived.over), columns, derived.comment)
    Console().print(table)


def views_page() -> str:
    """The page about all views, in Markdown."""
    lines = ["# Views", "", "Made by `anabranch views --markdown` from the definitions in `views/`."]
    every: list[View | Derived] = [*all_views(), *derived_views()]
    for view in sorted(every, key=lambda one: one.name):
        lines += ["", f"## `serving.{view.name}`", "", f"{view.comment}.", "", "| column | what it is |", "|---|---|"]
        if isinstance(view, Derived):
            lines += [f"| `{column.name}` | {column.comment} |" for column in view.columns]
            lines += ["", f"Over {', '.join(f'`{name}`' for name in view.over)}, computed when it is asked for."]
        else:
            lines += [f"| `{read.name}` | {read.comment} |" for read in view.reads]
            lines += ["", f"Of `changelog.{view.entity}`. Partial states: `serving.{view.name}_states`."]
            if view.defers:
                lines += ["Changes of batch sources (`speed.batch_services`) come with the next batch run."]
        if isinstance(view, Matches) and view.alert:
            lines += [f"Each row also goes, once, to the topic `alert.{view.name}`."]
    return "\n".join(lines) + "\n"


def explain(name: Annotated[str, typer.Argument(help="a view")]) -> None:
    """Show a view whole: its columns, its tables, its merged SQL and its boundary."""
    for derived in derived_views():
        if derived.name == name:
            typer.echo(f"{name}: {derived.comment}\n\nover {', '.join(derived.over)}; read as:")
            for column in derived.columns:
                typer.echo(f"  {column.name} {column.type}   -- {column.comment}")
            typer.echo(derived.sql)
            return
    view = view_named(name)
    typer.echo(f"{view.name}: {view.comment}\n")
    if isinstance(view, Matches):
        for name, side in view.sides.items():
            typer.echo(f"matches of {name}: changelog.{side.entity} where {side.where}")
        reach = "at any time" if view.reach_seconds is None else f"at most {view.reach_seconds} s apart"
        typer.echo(f"appended {reach}{f'; each goes to the topic alert.{view.name}' if view.alert else ''}\n")
    else:
        typer.echo(f"of changelog.{view.entity}, where {view.contribution.condition}\n")
    if view.defers:
        services = ", ".join(Settings().speed.batch_services) or "there are none"
        typer.echo(f"changes of batch sources (speed.batch_services: {services}) are left to the batch side\n")
    typer.echo(f"partial states, in lake.batch.{view.name} and lake.speed.{view.pipeline}:")
    for key in view.contribution.keys:
        typer.echo(f"  key    {key.field.name} {key.field.type} = {key.expression}")
    for state in view.contribution.states:
        typer.echo(f"  state  {state.field.name} {state.field.type} = {state.reducer}({state.expression})")
    typer.echo("\nread as:")
    for read in view.reads:
        typer.echo(f"  {read.name} = {read.expression}   -- {read.comment}")
    with ops.connect(Settings()) as connection:
        served = [one for one in current(connection) if one.view == name]
    if served:
        at = served[0]
        typer.echo(f"\npublication {at.publication}: epoch {at.epoch} of generation {at.generation}, which starts at")
        typer.echo(f"  {json.dumps(to_json(at.vector))}")
        if view.defers:
            number = deferred(Settings()).get(view.name, 0)
            typer.echo(f"left to the next batch run: {number:,} changes of batch sources")
        typer.echo(f"\n{sql.merged(view, at.pin)}")


def query(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="a query; the default catalog is lake")],
    form: Annotated[Format, typer.Option("--format")] = Format.table,
) -> None:
    """Ask Trino. Example: anabranch query "SELECT country, sum(revenue) FROM serving.revenue GROUP BY 1" """
    columns, rows = trino.execute(trino.connect(Settings()), statement)
    _print(columns, rows, form)


def wait(timeout: Annotated[float, typer.Option(help="seconds")] = 600) -> None:
    """Wait until the merged views cover everything acknowledged so far."""
    with Spinner("waiting") as (progress, task):
        wait_until(
            Settings(),
            timeout_seconds=timeout,
            progress=lambda missing: progress.update(task, description=f"waiting: {missing:,} offsets to go"),
        )
    typer.echo("the merged views cover everything acknowledged so far")
    for name, number in deferred(Settings()).items():
        typer.echo(f"but for {number:,} changes of batch sources, which {name} leaves to the next batch run")


def verify(as_json: AsJson = False) -> None:
    """Compare log, archive and every merged view at one journaled cut. Exit status 1 on any difference."""
    result = spark_job("serving.verify", [], "verify", (0, 1))
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(f"records of the log: {result['records']}")
        typer.echo(f"rows compared: {result['compared']}")
        for name, number in result["deferred"].items():
            typer.echo(f"left to the next batch run by {name}: {number:,} changes of batch sources")
        for difference in result["differences"]:
            typer.echo(f"DIFFERENCE {difference}")
        typer.echo("exact" if not result["differences"] else f"{len(result['differences'])} differences")
    if result["differences"]:
        raise typer.Exit(1)


def generation_new() -> None:
    """Begin a new generation of the speed layer, beside the served one, from the archived position minus the horizon.

    Restarts the speed application. The views go on as they are; the next batch run that finds the new generation
    warm switches to it.
    """
    settings = Settings()
    topics(settings)  # a new view may alert
    with ops.connect(settings) as connection:
        begun = begin(settings, connection, "main")
    typer.echo(f"generation {begun.number} begins at {json.dumps(to_json(begun.start))}")
    if supervise.is_running(settings):
        supervise.restart(settings, "speed")
    else:
        typer.echo("it begins when the speed application starts again: docker compose restart speed")


def generation_list() -> None:
    """Show the generations, newest first; `cause`: what was lost, where the speed layer began one by itself."""
    with ops.connect(Settings()) as connection:
        rows = connection.execute(
            "SELECT pipeline, generation, code_version, created_at, cause FROM generations ORDER BY 1, 2 DESC"
        ).fetchall()
    _print(list(rows[0]) if rows else [], [list(row.values()) for row in rows], Format.table)


def spark_job(module: str, options: list[str], what: str, good: tuple[int, ...] = (0,)) -> Any:
    """Run a Spark job as its own process and return the JSON that it printed last.

    Its log goes to ``logs/<what>.log`` of the home. Raises TerminalError with the end of that log if it fails.
    """
    settings = Settings()
    log = settings.home / "logs" / f"{what}-job.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ANABRANCH_HOME": str(settings.home), "PYTHONPATH": str(ROOT)}
    with log.open("w") as errors, Spinner(what):
        done = subprocess.run(
            [sys.executable, "-m", module, *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            env=environment,
        )
    if done.returncode not in good:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        ours = (
            line.partition(" ERROR ")[2] for line in lines if line.startswith("20")
        )  # Spark's years have two digits
        said = [text.partition(" ")[2] for text in ours if text]
        raise TerminalError(
            f"{what} failed (exit status {done.returncode}): {said[-1] if said else lines[-1] if lines else ''}\n"
            f"  its log: {log}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


class Spinner:
    """A line that shows that something goes on, on a terminal only."""

    def __init__(self, what: str) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._what = what

    def __enter__(self) -> tuple[Progress, Any]:
        self._progress.start()
        return self._progress, self._progress.add_task(self._what, total=None)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _say_published(published: publication.Published) -> None:
    if published.publication is None:
        typer.echo("nothing to publish: it is served already")
    else:
        typer.echo(f"publication {published.publication} ({published.kind}): {', '.join(published.views)}")


def _print(columns: list[str], rows: list[Any], form: Format) -> None:
    if form is Format.json:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], default=str))
    elif form is Format.csv:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([["" if value is None else value for value in row] for row in rows])
        typer.echo(out.getvalue(), nl=False)
    else:
        table = Table(*columns)
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row))
        Console(width=None if sys.stdout.isatty() else 240).print(table)
