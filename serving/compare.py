"""Comparison: what a finished run would change, row by row, before anybody sees it.

Both sides are read at one cut of the log: what is served, with its speed side up to the run's boundary, against the
run's batch side alone. Where the run stands on another generation of the speed layer, its boundary is no epoch's start
of the served one; then the nearest epoch below is taken and the number of records between is told.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trino.dbapi import Connection as TrinoConnection

from changelog.erasures import served_number
from changelog.positions import Vector, covers, from_json
from runtime import ops, trino
from runtime.errors import TerminalError
from runtime.settings import Settings, entity_of, topic_of
from serving import sql
from serving.published import Served, current
from serving.sql import Pin
from views.algebra import View
from views.matching import Matches
from views.registry import view_named

EXAMPLES = 20


@dataclass
class Difference:
    """One view compared. ``only_served``, ``only_run``: rows by key; ``changed``: rows whose measures differ, and of
    each measure how many. ``late_copies``: duplicates beyond the horizon, which what is served still counts and the run
    does not. ``deferred``: changes that the speed side of what is served left to the run. ``records_apart``: records
    between the two cuts; 0 means the comparison is exact."""

    view: str
    rows: int = 0
    only_served: int = 0
    only_run: int = 0
    changed: int = 0
    measures: dict[str, int] = field(default_factory=dict)
    late_copies: int = 0
    deferred: int = 0
    records_apart: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def differing(self) -> int:
        return self.only_served + self.only_run + self.changed


@dataclass
class Comparison:
    """All views of a run, and whether differences are accounted for: there are none, or late copies or deferred changes
    explain them, or the code is another, or the run leaves out guests who were erased since (``erased``): then there
    are no examples, for these would be their rows."""

    run_id: str
    code_changed: bool
    views: list[Difference] = field(default_factory=list)
    erased: bool = False

    @property
    def unexplained(self) -> list[str]:
        """Views that differ although nothing that is known says why."""
        if self.code_changed or self.erased:
            return []
        return [d.view for d in self.views if d.differing and not (d.late_copies or d.deferred or d.records_apart)]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "unexplained": self.unexplained}


def compare(settings: Settings, run_id: str) -> Comparison:
    """Compare a finished run with what is served, and note the report in ``ops.comparisons``.

    Reads only, else. A second call compares anew and replaces the report. Raises TerminalError if there is no such run.
    """
    with ops.connect(settings) as connection:
        run = connection.execute("SELECT * FROM runs WHERE run_id = %s AND state = 'built'", (run_id,)).fetchone()
        if run is None:
            raise TerminalError(f"there is no finished run {run_id} to compare")
        served = {one.view: one for one in current(connection)}
        lake = trino.connect(settings)
        folded_by = {_code(lake, served[name]) for name in run["views"] if name in served} - {None}
        erased = run["detail"].get("erasures", 0) != served_number(connection)
        report = Comparison(run_id, bool(folded_by - {run["code_version"]}), erased=erased)
        vector = from_json(run["vector"])
        for name, built in sorted(run["views"].items()):
            if name in served:
                table = None if run["location"] == "batch" else f'"{run["location"]}".{name}_states'
                new = Pin(built["snapshot"], run["generation"], run["epoch"], table=table)
                report.views.append(_compare(lake, served[name], new, vector, 0 if erased else EXAMPLES))
        connection.execute(
            "INSERT INTO comparisons (run_id, report) VALUES (%s, %s) ON CONFLICT (run_id) DO UPDATE SET "
            "(report, compared_at) = (excluded.report, now())",
            (run_id, json.dumps(report.to_json(), default=str)),
        )
    return report


def _code(lake: TrinoConnection, served: Served) -> str | None:
    """The version of the code that folded what is served, from the snapshot's own properties."""
    if served.snapshot is None:
        return None
    _, rows = trino.execute(
        lake,
        f"SELECT element_at(summary, 'anabranch.code') FROM lake.batch.\"{served.view}$snapshots\" "
        f"WHERE snapshot_id = {served.snapshot}",
    )
    return str(rows[0][0]) if rows else None


def _compare(lake: TrinoConnection, served: Served, new: Pin, vector: Vector, examples: int) -> Difference:
    view = view_named(served.view)
    found = Difference(view.name)
    old = served.pin
    if old.generation == new.generation:
        until, cut = max(old.epoch, new.epoch), vector if new.epoch > old.epoch else served.vector
    else:
        until, cut, found.records_apart = _nearest(lake, served, vector, view.topics)
    found.late_copies = _late_copies(lake, view, served, until, cut)
    found.deferred = _deferred(lake, view, served, until)
    old = replace(old, until=until)
    new = replace(new, until=until if old.generation == new.generation else new.epoch)
    _, rows = trino.execute(lake, _counts(view, old, new))
    measures = _measures(view)
    found.rows, found.only_served, found.only_run, found.changed, *differ = (int(value or 0) for value in rows[0])
    found.measures = {name: number for name, number in zip(measures, differ, strict=True) if number}
    if found.differing and examples:
        columns, rows = trino.execute(lake, f"{_differences(view, old, new)} LIMIT {examples}")
        found.examples = [dict(zip(columns, row, strict=True)) for row in rows]
    return found


def _measures(view: View) -> list[str]:
    return [read.name for read in view.reads if read.name not in view.identity]


def _paired(view: View, old: Pin, new: Pin) -> str:
    """Both sides by key: whether it is there (``o``, ``n``), and each measure as ``<name>_served`` and ``<name>_run``.

    Grouped and not joined, because keys may be null, and Trino joins what IS NOT DISTINCT by comparing all with all.
    """
    columns = ", ".join(f"{expression} AS {name}" for name, expression in sql.comparable(view).items())
    sides = [
        f"SELECT {columns}, {here} AS served FROM ({sql.merged(view, pin)})"
        for here, pin in (("true", old), ("false", new))
    ]
    measures = "".join(
        f", arbitrary({name}) FILTER (WHERE {here}) AS {name}_{side}"
        for name in _measures(view)
        for here, side in (("served", "served"), ("NOT served", "run"))
    )
    keys = ", ".join(view.identity)
    return (
        f"SELECT {keys}, bool_or(served) AS o, bool_or(NOT served) AS n{measures}\n"
        f"FROM ({sides[0]} UNION ALL {sides[1]})\nGROUP BY {keys}"
    )


def _differ(measure: str) -> str:
    return f"{measure}_served IS DISTINCT FROM {measure}_run"


def _counts(view: View, old: Pin, new: Pin) -> str:
    changed = " OR ".join(_differ(measure) for measure in _measures(view)) or "false"
    each = "".join(f", count_if(o AND n AND {_differ(measure)})" for measure in _measures(view))
    return (
        f"SELECT count(*), count_if(NOT n), count_if(NOT o), count_if(o AND n AND ({changed})){each} "
        f"FROM ({_paired(view, old, new)})"
    )


def _differences(view: View, old: Pin, new: Pin) -> str:
    """Rows that differ: the key, and each measure as it is served and as the run has it."""
    measures = "".join(f", {name}_served, {name}_run" for name in _measures(view))
    changed = " OR ".join(["NOT o", "NOT n", *(_differ(measure) for measure in _measures(view))])
    return f"SELECT {', '.join(view.identity)}{measures} FROM ({_paired(view, old, new)}) WHERE {changed}"


def _late_copies(lake: TrinoConnection, view: View, served: Served, until: int, cut: Vector) -> int:
    """Changes that the speed layer counted from what is served to ``cut``, where its epoch ``until`` starts, less those
    that the archive counts there. For matches from the oldest epoch that is kept on: a copy stays in the histories."""
    epoch, start = _oldest(lake, served) if isinstance(view, Matches) else (served.epoch, served.vector)
    return sum(_copies(lake, topic, served.generation, epoch, start, until, cut) for topic in view.topics)


def _deferred(lake: TrinoConnection, view: View, served: Served, until: int) -> int:
    """Changes that the speed side of what is served leaves out, up to an epoch."""
    if not view.defers:
        return 0
    _, rows = trino.execute(
        lake,
        "SELECT sum(s.deferred.records) FROM lake.speed.main s WHERE s.view = 'deferred' AND s.deferred.topic = "
        f"'{topic_of(view.entity)}' AND s.generation = {served.generation} AND s.epoch >= {served.epoch} AND "
        f"s.epoch < {until}",
    )
    return int(rows[0][0] or 0)


def _oldest(lake: TrinoConnection, served: Served) -> tuple[int, Vector]:
    """The oldest epoch of the served generation in the speed table, and where it starts."""
    _, rows = trino.execute(
        lake,
        "SELECT s.journal.topic, s.journal.kafka_partition, min(s.epoch), min(s.journal.start_offset) "
        f"FROM lake.speed.main s WHERE s.view = 'journal' AND s.generation = {served.generation} GROUP BY 1, 2",
    )
    start: Vector = {}
    for topic, partition, _, offset in rows:
        start.setdefault(topic, {})[partition] = offset
    return (min(row[2] for row in rows), start) if rows else (served.epoch, served.vector)


def _copies(
    lake: TrinoConnection, topic: str, generation: int, epoch: int, start: Vector, until: int, cut: Vector
) -> int:
    if until <= epoch:
        return 0
    between = " OR ".join(
        f"(kafka_partition = {partition} AND kafka_offset >= {first} AND kafka_offset < {cut[topic][partition]})"
        for partition, first in start[topic].items()
    )
    _, rows = trino.execute(
        lake,
        "SELECT (SELECT sum(s.journal.changes) FROM lake.speed.main s WHERE s.view = 'journal' AND "
        f"s.journal.topic = '{topic}' AND s.generation = {generation} AND s.epoch >= {epoch} AND "
        f"s.epoch < {until}), (SELECT count(*) FROM lake.archive.\"{entity_of(topic)}\" WHERE kind = 'change' AND "
        f"({between}))",
    )
    return int(rows[0][0] or 0) - int(rows[0][1])


def _nearest(lake: TrinoConnection, served: Served, vector: Vector, topics: Sequence[str]) -> tuple[int, Vector, int]:
    """The last epoch of the served generation that starts at or before ``vector``, where it starts, and how many
    records of ``topics`` lie between."""
    _, rows = trino.execute(
        lake,
        "SELECT s.epoch, s.journal.topic, s.journal.kafka_partition, s.journal.start_offset, s.journal.end_offset "
        f"FROM lake.speed.main s WHERE s.view = 'journal' AND s.generation = {served.generation} "
        f"AND s.epoch >= {served.epoch}",
    )
    starts: dict[int, Vector] = {served.epoch: served.vector}
    for epoch, name, partition, first, end in rows:
        starts.setdefault(epoch, {}).setdefault(name, {})[partition] = first
        starts.setdefault(epoch + 1, {}).setdefault(name, {}).setdefault(partition, end)
    until = max((epoch for epoch, start in starts.items() if covers(vector, start)), default=served.epoch)
    apart = sum(abs(sum(vector[topic].values()) - sum(starts[until][topic].values())) for topic in topics)
    return until, starts[until], apart


def described(report: Comparison) -> str:
    """A comparison as text: a line for each view, and its examples below."""
    why = ", folded by other code than what is served" if report.code_changed else ""
    why += ", which still counts guests who are erased" if report.erased else ""
    lines = [f"run {report.run_id}{why}"]
    for view in report.views:
        if not view.differing:
            lines.append(f"{view.view}: all {view.rows} rows are the same")
            continue
        measures = ", ".join(f"{name} in {number}" for name, number in view.measures.items())
        lines.append(
            f"{view.view}: of {view.rows} rows {view.differing} differ: {view.only_served} only served, "
            f"{view.only_run} only in the run, {view.changed} changed" + (f" ({measures})" if measures else "")
        )
        if view.late_copies:
            lines.append(
                f"  {view.late_copies} copies beyond the horizon are counted in what is served, not in the run"
            )
        if view.deferred:
            lines.append(f"  {view.deferred} changes of batch sources are in the run; what is served waits for it")
        if view.records_apart:
            lines.append(f"  the two are {view.records_apart} records apart: they stand on different generations")
        lines += [f"  {', '.join(f'{name}={value}' for name, value in row.items())}" for row in view.examples]
    return "\n".join(lines)
