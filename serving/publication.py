"""Publication: one row in ``publications``, then one ``CREATE OR REPLACE VIEW`` for each view, then read back.

What is served is what the views say. A view's text pins batch snapshot, generation and epoch together, so a query sees
the old pair or the new pair and never a mix; and every pair that was ever published is exact by itself, so it does not
matter that views are replaced one after another. A publication that was interrupted is finished by whoever comes next.
"""

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trino.dbapi import Connection as TrinoConnection

from changelog.erasures import served_number
from changelog.positions import covers, from_json, to_json
from runtime import faults, ops, trino
from runtime.errors import BehindError, ContractError, HeldError, TerminalError
from runtime.ops import Connection
from runtime.settings import Settings, topic_of
from runtime.version import code_version
from serving import sql
from serving.published import Served, current, goes_back, pair_before, pair_from_row, pair_of, views_in
from serving.whole_log import archived_entities
from views.algebra import View
from views.registry import all_views, derived_views, view_named, views_of

log = logging.getLogger("publication")

_COMMENT = re.compile(r"publication (\d+):")


@dataclass(frozen=True)
class Published:
    """What a call published: ``publication`` is None if there was nothing to do."""

    publication: int | None
    kind: str
    views: tuple[str, ...]


def publish_initial(settings: Settings, pipeline: str = "main") -> Published:
    """Publish the views from the speed layer alone, from the start of its first generation. Idempotent.

    Views that were never published (a new definition) are published when a batch run has built them.
    """
    with ops.connect(settings) as connection, ops.publication_lock(connection):
        _recover(settings, connection)
        done = connection.execute("SELECT 1 FROM publications WHERE pipeline = %s", (pipeline,)).fetchone()
        if done:
            # views that depend on no publication may be new
            _ensure_schemas(settings, trino.connect(settings), is_hiding(connection))
            return Published(None, "initial", ())
        first = connection.execute(
            "SELECT generation, start_vector FROM generations WHERE pipeline = %s ORDER BY generation LIMIT 1",
            (pipeline,),
        ).fetchone()
        if first is None:
            raise TerminalError("the speed layer has not begun a generation yet: anabranch status")
        start = from_json(first["start_vector"])
        if any(offset for partitions in start.values() for offset in partitions.values()):
            raise TerminalError(
                "the speed layer's first generation does not begin at the beginning of the log, so the speed side "
                "alone is not the whole: run anabranch batch --full"
            )
        served = [
            Served(view.name, 0, None, first["generation"], 0, start, None, 0, None) for view in views_of(pipeline)
        ]
        return _publish(settings, connection, pipeline, "initial", None, served)


def publish(settings: Settings, run_id: str | None = None, back: bool = False, pipeline: str = "main") -> Published:
    """Publish a finished run, by default the newest. Publishing what is served already does nothing.

    ``back``: also a run that lies behind what is served, as a recompute does that took longer than the schedule's
    interval; its pair is exact as well, and was never served. What is served under names that the run's code no longer
    defines is withdrawn. Raises HeldError after a rollback, BehindError for a run
    that lies behind, TerminalError if there is no such run.
    """
    with ops.connect(settings) as connection, ops.publication_lock(connection):
        _recover(settings, connection)
        _raise_if_held(connection, pipeline)
        run = connection.execute(
            "SELECT * FROM runs WHERE pipeline = %s AND state = 'built' AND location = 'batch' "
            "AND (%s::text IS NULL OR run_id = %s) "
            "ORDER BY finished_at DESC LIMIT 1",
            (pipeline, run_id, run_id),
        ).fetchone()
        if run is None:
            raise TerminalError(f"there is no finished run{f' {run_id}' if run_id else ''} to publish: anabranch batch")
        generation = connection.execute(
            "SELECT code_version, erasures FROM generations WHERE pipeline = %s AND generation = %s",
            (pipeline, run["generation"]),
        ).fetchone()
        if generation is None or generation["code_version"] != run["code_version"]:
            raise ContractError(
                f"run {run['run_id']} was folded by code {run['code_version']}, generation {run['generation']} by "
                f"{generation['code_version'] if generation else 'none'}: both sides have to be folded by the same"
            )
        erasures, served = run["detail"].get("erasures", 0), served_number(connection)
        if erasures != generation["erasures"] or erasures < served:
            raise ContractError(
                f"run {run['run_id']} was folded without the guests of the erasures up to {erasures}, generation "
                f"{run['generation']} has taken in those up to {generation['erasures']}, what is served those up to "
                f"{served}: erased guests would be there in part, or come back. Build it anew: anabranch batch"
            )
        vector = from_json(run["vector"])
        now = {served.view: served for served in current(connection)}
        chosen = []
        for name, built in sorted(run["views"].items()):
            before = now.get(name)
            if before and before.snapshot == built["snapshot"]:
                continue
            if before and not covers(vector, before.vector):
                _raise_if_behind(connection, before, run, built["snapshot"], back)
            chosen.append(
                Served(
                    name, 0, run["run_id"], run["generation"], run["epoch"], vector, built["snapshot"],
                    built["records"], None,
                )
            )  # fmt: skip
        published = Published(None, "batch", ())
        if chosen:
            _check_there(settings, connection, pipeline, chosen)
            published = _publish(settings, connection, pipeline, "batch", run["run_id"], chosen)
        if run["code_version"] == code_version():  # other code has other definitions than this here
            _withdraw(settings, connection)
        return published


def _withdraw(settings: Settings, connection: Connection) -> None:
    """Take back what is served under names that are no longer defined: nobody would publish it again, so it would go on
    showing what it showed. Its pairs are retired. A second call finds nothing."""
    lake = trino.connect(settings)
    for name in undefined(views_say(lake)):
        trino.execute(lake, f'DROP VIEW IF EXISTS lake.serving."{name}"')
        log.info("%s is no longer defined, and no longer served", name)
    connection.execute(
        "UPDATE publication_views SET withdrawn_at = now(), retired_at = coalesce(retired_at, now()) "
        "WHERE withdrawn_at IS NULL AND view <> ALL(%s)",
        ([view.name for view in all_views()],),
    )


def undefined(served: Iterable[str]) -> list[str]:
    """Those of the names of published views that no definition has."""
    names = {name for view in all_views() for name in (view.name, f"{view.name}_states")}
    return sorted(set(served) - names - {derived.name for derived in derived_views()})


def _raise_if_behind(connection: Connection, before: Served, run: dict[str, Any], snapshot: int, back: bool) -> None:
    """Raise BehindError unless going back is meant, possible, and would not repeat what was served once."""
    published = connection.execute(
        "SELECT 1 FROM publication_views WHERE view = %s AND snapshot = %s", (before.view, snapshot)
    ).fetchone()
    if not back or published or run["generation"] != before.generation:
        raise BehindError(
            f"run {run['run_id']} ends at epoch {run['epoch']} of generation {run['generation']}, behind what "
            f"{before.view} serves (epoch {before.epoch} of generation {before.generation}); to go back use rollback"
        )


def rollback(
    settings: Settings, names: list[str], to: int | None = None, request: str | None = None, pipeline: str = "main"
) -> Published:
    """Publish, of each view named, the pair that was served before, or that of publication ``to``; hold automatic
    publication.

    Without names: all views that have something to go back to, or all of ``to``. A second call without ``to`` goes one
    further back, unless it names the same ``request``: what was asked for once is done once. Raises TerminalError where
    there is nothing before, its generation no longer runs, or maintenance has retired it.
    """
    with ops.connect(settings) as connection, ops.publication_lock(connection):
        _recover(settings, connection)
        asked = connection.execute(
            "SELECT 1 FROM publications WHERE kind = 'rollback' AND run_id = %s", (request,)
        ).fetchone()
        if asked:
            return Published(None, "rollback", ())
        newest = connection.execute(
            "SELECT max(generation) AS g FROM generations WHERE pipeline = %s", (pipeline,)
        ).fetchone()
        chosen = []
        views = [view_named(name) for name in names] or views_in(connection, to, pipeline)
        if to is None and not names:
            views = [view for view in views if goes_back(connection, view)] or views
        for view in views:
            before = pair_before(connection, view) if to is None else pair_of(connection, view, to)
            if newest and before.generation != newest["g"]:
                raise TerminalError(
                    f"{view.name}: publication {before.publication} stands on generation {before.generation}, which no "
                    f"longer runs (now {newest['g']})"
                )
            chosen.append(before)
        _check_there(settings, connection, pipeline, chosen)
        return _publish(settings, connection, pipeline, "rollback", request, chosen)


def release(settings: Settings, pipeline: str = "main") -> bool:
    """Let publication go on after a rollback. Returns whether it was held."""
    with ops.connect(settings) as connection, ops.publication_lock(connection):
        return connection.execute("DELETE FROM holds WHERE pipeline = %s", (pipeline,)).rowcount > 0


def _check_there(settings: Settings, connection: Connection, pipeline: str, pairs: list[Served]) -> None:
    """Raise TerminalError unless both sides of each pair are still kept: maintenance retires what is old."""
    rows = connection.execute("SELECT * FROM speed_floors WHERE pipeline = %s", (pipeline,)).fetchall()
    floors = {row["generation"]: row["epoch"] for row in rows}
    tags = [
        f"SELECT '{pair.view}' FROM lake.batch.\"{pair.view}$refs\" WHERE snapshot_id = {pair.snapshot}"
        for pair in pairs
        if pair.snapshot is not None
    ]
    kept = {view for (view,) in trino.execute(trino.connect(settings), " UNION ALL ".join(tags))[1]} if tags else set()
    for pair in pairs:
        tagged = pair.snapshot is None or pair.view in kept
        if not tagged or pair.epoch < floors.get(pair.generation, 0):
            raise TerminalError(
                f"{pair.view}: maintenance has retired run {pair.run_id} (generation {pair.generation}, epoch "
                f"{pair.epoch}, snapshot {pair.snapshot}); make a new one: anabranch batch"
            )


def _raise_if_held(connection: Connection, pipeline: str) -> None:
    held = connection.execute("SELECT * FROM holds WHERE pipeline = %s", (pipeline,)).fetchone()
    if held:
        raise HeldError(
            f"publication is held since the rollback of {held['held_at']:%Y-%m-%d %H:%M} (publication "
            f"{held['publication']}); let it go on with: anabranch release"
        )


def _publish(
    settings: Settings, connection: Connection, pipeline: str, kind: str, run_id: str | None, views: list[Served]
) -> Published:
    """Record what is to be served, then serve it. ``run_id``: the run, or who asked for a rollback."""
    with connection.transaction():
        row = connection.execute(
            "INSERT INTO publications (pipeline, kind, run_id, generation, state, code_version) "
            "VALUES (%s, %s, %s, %s, 'started', %s) RETURNING publication",
            (pipeline, kind, run_id, max(view.generation for view in views), code_version()),
        ).fetchone()
        assert row is not None
        number = int(row["publication"])
        for view in views:
            connection.execute(
                "INSERT INTO publication_views (publication, view, topic, run_id, generation, epoch, vector, snapshot, "
                "records, restores) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (
                    number, view.view, topic_of(view_named(view.view).entity), view.run_id, view.generation, view.epoch,
                    json.dumps(to_json(view.vector)), view.snapshot, view.records, view.restores,
                ),
            )  # fmt: skip
        if kind == "rollback":  # held from the moment it is decided, whoever finishes it
            connection.execute(
                "INSERT INTO holds (pipeline, publication) VALUES (%s, %s) ON CONFLICT (pipeline) DO UPDATE SET "
                "publication = excluded.publication",
                (pipeline, number),
            )
    faults.point("publish.recorded")
    _serve(settings, connection, number, kind)
    log.info("publication %d (%s): %s", number, kind, ", ".join(view.view for view in views))
    return Published(number, kind, tuple(view.view for view in views))


def _recover(settings: Settings, connection: Connection) -> None:
    """Finish publications that were interrupted, oldest first."""
    rows = connection.execute(
        "SELECT publication, kind FROM publications WHERE state = 'started' ORDER BY publication"
    ).fetchall()
    for row in rows:
        log.info("finishing publication %d, which was interrupted", row["publication"])
        _serve(settings, connection, row["publication"], row["kind"])


def _serve(settings: Settings, connection: Connection, publication: int, kind: str) -> None:
    """Replace the views of a recorded publication and read back that they are served."""
    rows = connection.execute(
        "SELECT * FROM publication_views WHERE publication = %s ORDER BY view", (publication,)
    ).fetchall()
    lake = trino.connect(settings)
    hide = is_hiding(connection)
    _ensure_schemas(settings, lake, hide)
    known = {view.name: view for view in all_views()}  # one whose definition is gone is about to be withdrawn
    pairs = [pair for pair in map(pair_from_row, rows) if pair.view in known]
    texts: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        texts |= _texts(known[pair.view], pair, _says(publication, kind, pair), hide)
    pins = {pair.view: (known[pair.view], pair.pin) for pair in [*current(connection), *pairs] if pair.view in known}
    renewed = {pair.view for pair in pairs}
    for derived in derived_views():
        if renewed & set(derived.over) and pins.keys() >= set(derived.over):
            texts[derived.name] = (
                f"{derived.comment}. publication {publication}: {kind}",
                sql.derived(derived, pins, hide),
            )
    trino.execute_all(settings, (_create(*text) for text in texts.items()), _between)
    said = views_say(lake)
    wrong = [name for name in texts if said.get(name) != publication]
    if wrong:
        raise TerminalError(f"publication {publication} was not served as written: {', '.join(wrong)} say {said}")
    connection.execute(
        "UPDATE publications SET state = 'finished', finished_at = now() WHERE publication = %s", (publication,)
    )


def _texts(view: View, pair: Served, says: str, hide: bool) -> dict[str, tuple[str, str]]:
    """What is served of a view: name → comment and SELECT."""
    comment = f"{view.comment}. {says}"
    return {
        view.name: (comment, sql.merged(view, pair.pin, hide)),
        f"{view.name}_states": (comment, sql.states(view, pair.pin, hide)),
    }


def is_hiding(connection: Connection) -> bool:
    """Whether somebody is being erased of whom something may still be in what is served."""
    row = connection.execute("SELECT 1 FROM erasures WHERE state IN ('requested', 'published')").fetchone()
    return row is not None


def refresh(settings: Settings) -> None:
    """Serve the pairs that are served once more, with or without what hides guests who are being erased. Any number of
    calls leaves the same."""
    with ops.connect(settings) as connection, ops.publication_lock(connection):
        _recover(settings, connection)
        lake, hide, said = trino.connect(settings), is_hiding(connection), {}
        _ensure_schemas(settings, lake, hide)
        known = {view.name: view for view in all_views()}
        texts: dict[str, tuple[str, str]] = {}
        pairs = [pair for pair in current(connection) if pair.view in known]
        kinds = {
            row["publication"]: row["kind"] for row in connection.execute("SELECT publication, kind FROM publications")
        }
        for pair in pairs:
            said[pair.view] = pair.publication, kinds[pair.publication]
            texts |= _texts(known[pair.view], pair, _says(*said[pair.view], pair), hide)
        pins = {pair.view: (known[pair.view], pair.pin) for pair in pairs}
        for derived in derived_views():
            if pins.keys() >= set(derived.over):
                number, kind = max(said[name] for name in derived.over)
                comment = f"{derived.comment}. publication {number}: {kind}"
                texts[derived.name] = (comment, sql.derived(derived, pins, hide))
        trino.execute_all(settings, (_create(*text) for text in texts.items()), _between)


def _create(name: str, text: tuple[str, str]) -> str:
    comment, select = text[0].replace("'", "''"), text[1]
    return f"CREATE OR REPLACE VIEW lake.serving.{name} COMMENT '{comment}' SECURITY DEFINER AS {select}"


def _between() -> None:
    faults.point("publish.between-views")


def _says(publication: int, kind: str, pair: Served) -> str:
    return (
        f"publication {publication}: {kind}, generation {pair.generation}, epoch {pair.epoch}, batch snapshot "
        f"{pair.snapshot}"
    )


def views_say(lake: TrinoConnection) -> dict[str, int]:
    """Which publication each served view carries, as Trino tells it."""
    _, rows = trino.execute(
        lake,
        "SELECT table_name, comment FROM system.metadata.table_comments "
        "WHERE catalog_name = 'lake' AND schema_name = 'serving'",
    )
    return {
        name: int(match[1]) for name, comment in rows if comment is not None and (match := _COMMENT.search(comment))
    }


def _ensure_schemas(settings: Settings, lake: TrinoConnection, hide: bool) -> None:
    """The schemas of what Trino owns, and the views that depend on no publication; ``hide``: guests being erased."""
    for schema in ("serving", "ops"):
        trino.execute(lake, f"CREATE SCHEMA IF NOT EXISTS lake.{schema}")
    archived = archived_entities(lake)
    fixed = {
        "lake.ops.epochs": sql.EPOCHS.format(pipeline="main"),
        "lake.ops.bad_records": sql.bad_records(["main"], list(archived), hide),
        **({"lake.ops.audit": sql.audit(archived, hide)} if archived else {}),
        "lake.serving.boundary": sql.boundary(all_views()),
        "lake.ops.columns": sql.columns([*all_views(), *derived_views()]),
    }
    trino.execute_all(
        settings, (f"CREATE OR REPLACE VIEW {name} SECURITY DEFINER AS {text}" for name, text in fixed.items())
    )
