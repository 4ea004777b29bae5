"""Drift: what the shop's database says and what the merged views say of it, compared row by row, and mended.

The database goes on changing, and the views follow seconds behind. So a row that differs is only suspected. It has
drifted if it still differs when capture and speed layer have come past the moment of the first look, although the
database has not changed it since: what the views had to show by then is what the database said all the while.

What has drifted is judged by its number. Up to ``drift.republish_at_most`` of an entity it is *minor*: the database's
rows are sent through the stream again, and what differs from the log is written. More than that, or a view that still
differs when the log and the database agree, is *major*: everything is read and folded anew.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from changelog.sources.cdc import capture, database, stream
from changelog.sources.cdc.mapper import Mark
from changelog.sources.cdc.mapping import TABLES
from changelog.sources.cdc.republish import Name, republish
from changelog.sources.cdc.service import read_bad
from runtime import ops, trino
from runtime.errors import TransientError
from runtime.settings import Settings
from serving.wait import wait

log = logging.getLogger("drift")

LOOKS = 3
"""So often a row that differs is looked at; one that the database changes each time says nothing."""

ATTEMPTS = 2
"""So often what differs is republished: a mapper that is killed meanwhile leaves a request out."""

NAMED = 1_000
"""So many rows are looked at again by name; if there are more, all are."""

EXAMPLES = 20
MOST = 100_000
"""So many rows that differ are taken from Trino for each entity; more are not counted."""

Severity = Literal["none", "minor", "major"]
Action = Literal["none", "republished", "rebuild proposed", "rebuild started"]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """A row that differs. ``kind``: ``missing`` in the view, ``extra`` there, or ``changed``, then in ``columns``.
    ``digest``: of what the database has; None where it has nothing."""

    ref: str
    kind: str
    columns: tuple[str, ...]
    digest: str | None


@dataclass
class Drift:
    """One entity compared. ``missing``, ``extra``, ``changed``: rows that have drifted. ``refused``: rows that differ
    because the log's schema refuses what the database has (they are dead letters). ``moving``: rows that changed at
    each look. ``severity``, ``action``: what that is, and what was done."""

    entity: str
    compared: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    refused: int = 0
    moving: int = 0
    severity: Severity = "none"
    action: Action = "none"
    examples: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict, repr=False)

    @property
    def differing(self) -> int:
        return self.missing + self.extra + self.changed

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "rows"}


@dataclass(frozen=True)
class _Side:
    """Where an entity is: ``shop`` and ``view`` are SELECTs that give ``ref`` and the same columns, as texts that are
    equal where the values are. ``key``: of the shop's table."""

    columns: tuple[str, ...]
    shop: str
    view: str
    key: str


def _sides(prefix: str) -> dict[str, _Side]:
    """PostgreSQL and Trino for each entity. Times are compared in milliseconds and amounts by four digits, as the log
    has them."""
    ms = "floor(extract(epoch FROM CASE WHEN isfinite({0}) THEN {0} END) * 1000)::bigint::text AS {0}"
    view_ms = "CAST(date_diff('millisecond', TIMESTAMP '1970-01-01 00:00:00 UTC', {0}) AS varchar) AS {0}"

    def side(
        entity: str, key: str, table: str, plain: Mapping[str, str], times: Iterable[str], more: Any = ()
    ) -> _Side:
        shop = [f"'{prefix}{entity}-' || t.{key} AS ref"]
        view = ["ref"]
        for column, expression in plain.items():
            shop.append(f"{expression} AS {column}")
            view.append(column)
        for column in times:
            shop.append(ms.format(column))
            view.append(view_ms.format(column))
        for column, there, here in more:
            shop.append(f"{there} AS {column}")
            view.append(f"{here} AS {column}")
        names = (*plain, *times, *(column for column, _, _ in more))
        return _Side(
            names, f"SELECT {', '.join(shop)} FROM public.{table} t",
            f"SELECT {', '.join(view)} FROM serving.{entity}_latest", f"t.{key}",
        )  # fmt: skip

    guest = f"'{prefix}guest-' || t.customer_id"
    item = "chr(31)"
    items = (
        f"coalesce((SELECT string_agg(concat_ws({item}, i.sku, coalesce(i.name, chr(30)), round(i.quantity, 4)::text, "
        "round(i.unit_price, 4)::text), chr(29) ORDER BY i.line) FROM public.order_items i "
        "WHERE i.order_id = t.id), '')"
    )
    view_items = (
        f"array_join(transform(items, i -> i.sku || {item} || coalesce(i.name, chr(30)) || {item} || "
        f"CAST(i.quantity AS varchar) || {item} || CAST(i.unit_price AS varchar)), chr(29))"
    )
    same = {name: f"t.{name}" for name in ("first_name", "last_name", "email", "country")}
    order = {"guest_ref": guest, "session_ref": f"'{prefix}session-' || t.session_id"}
    order |= {name: f"t.{name}" for name in ("status", "currency", "country")}
    return {
        "guest": side("guest", "id", "customers", same, ("created_at", "modified_at")),
        "session": side(
            "session", "id", "sessions", {"guest_ref": guest, "channel": "t.channel"},
            ("started_at", "ended_at", "modified_at"),
        ),
        "order": side(
            "order", "id", "orders", order, ("created_at", "modified_at"),
            (("total", "round(t.total, 4)::text", "CAST(total AS varchar)"), ("items", items, view_items)),
        ),
    }  # fmt: skip


def comparison_sql(prefix: str, only: Mapping[str, Collection[str]] | None = None) -> str:
    """One query over both: a row for each entity with ``entity``, ``compared`` (rows in either) and ``rows``, those
    that differ: (ref, kind, columns, digest). ``only``: refs to look at, by entity."""
    return "\nUNION ALL\n".join(
        _compared(prefix, entity, side, None if only is None else only.get(entity, ()))
        for entity, side in _sides(prefix).items()
        if only is None or only.get(entity)
    )


def _compared(prefix: str, entity: str, side: _Side, only: Collection[str] | None) -> str:
    shop, view = side.shop, f"{side.view} WHERE starts_with(ref, '{prefix}')"
    if only is not None:
        head = f"{prefix}{entity}-"
        keys = [key for ref in only if (key := ref.removeprefix(head)).isdecimal() and int(key) < 1 << 63]
        shop += f" WHERE {side.key} IN ({', '.join(keys) or 'NULL'})"
        view += f" AND ref IN ({', '.join(map(trino.literal, only))})"
    digest = ", ".join(f"q.{column}" for column in side.columns)
    shop = f"SELECT q.*, md5(ROW({digest})::text) AS digest FROM ({shop}) q"
    differs = ", ".join(f"IF(s.{column} IS DISTINCT FROM v.{column}, '{column}')" for column in side.columns)
    kind = "CASE WHEN v.ref IS NULL THEN 'missing' WHEN s.ref IS NULL THEN 'extra' ELSE 'changed' END"
    return (
        f"SELECT '{entity}' AS entity, count(*) AS compared, "
        f"slice(array_agg(CAST(ROW(ref, kind, array_join(columns, ','), digest) AS ROW(ref varchar, kind varchar, "
        f"columns varchar, digest varchar))) FILTER (WHERE cardinality(columns) > 0), 1, {MOST}) AS differences\n"
        f"FROM (SELECT coalesce(s.ref, v.ref) AS ref, {kind} AS kind, s.digest, "
        f"filter(ARRAY[IF(v.ref IS NULL OR s.ref IS NULL, 'ref'), {differs}], c -> c IS NOT NULL) AS columns\n"
        f"FROM TABLE(shop.system.query(query => {trino.literal(shop)})) s\n"
        f"FULL OUTER JOIN ({view}) v ON s.ref = v.ref)"
    )


def compare(settings: Settings, only: Mapping[str, Collection[str]] | None = None) -> dict[str, tuple[int, list[Row]]]:
    """What database and views say now: by entity the rows compared and those that differ. Rows on their way differ."""
    _, found = trino.execute(trino.connect(settings, "lake"), comparison_sql(settings.cdc.refs, only))
    return {
        entity: (
            compared,
            [Row(ref, kind, tuple(columns.split(",")), digest) for ref, kind, columns, digest in rows or ()],
        )
        for entity, compared, rows in found
    }


def settle(settings: Settings, timeout_seconds: float = 300.0) -> None:
    """Return once the merged views show all that the database had committed when this was called.

    Raises TransientError if capture does not get there in time, or has not read the whole database yet.
    """
    deadline = time.monotonic() + timeout_seconds
    with database.connect(settings) as shop:
        row: Any = shop.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        shop.execute(database.BEAT)  # a commit behind it, so that the stream gets past it where the shop is quiet
    while True:
        mark = _mark(settings)
        if mark is not None and mark.whole and mark.lsn >= row[0]:
            break
        if time.monotonic() > deadline:
            state = "has not read the whole database yet" if mark is None or not mark.whole else "is late"
            raise TransientError(f"capture {state}: anabranch status, anabranch logs cdc, anabranch logs connect")
        time.sleep(0.2)
    wait(settings, timeout_seconds=max(1.0, deadline - time.monotonic()))


def measure(settings: Settings) -> dict[str, Drift]:
    """Compare everything, by entity; nothing is written. Waits until the views have come past each look.

    Raises TransientError if the database, capture or Trino do not answer or are late.
    """

    def again(open_: Differing) -> Differing:
        settle(settings)
        few = sum(map(len, open_.values())) <= NAMED
        return _by_ref(compare(settings, open_ if few else None))

    settle(settings)
    first = compare(settings)
    found = {entity: Drift(entity, compared) for entity, (compared, _) in first.items()}
    stayed, moving = stay(_by_ref(first), again)
    bad = read_bad(settings)
    for entity, drift in found.items():
        drift.moving = len(moving[entity])
        drift.rows = {ref: row for ref, row in stayed[entity].items() if (entity, ref) not in bad}
        drift.refused = len(stayed[entity]) - len(drift.rows)
        kinds = [row.kind for row in drift.rows.values()]
        drift.missing, drift.extra, drift.changed = (kinds.count(kind) for kind in ("missing", "extra", "changed"))
        if drift.rows:
            drift.severity = "minor" if len(drift.rows) <= settings.drift.republish_at_most else "major"
        drift.examples = [
            {"ref": row.ref, "kind": row.kind, "columns": list(row.columns)}
            for row in list(drift.rows.values())[:EXAMPLES]
        ]
    return found


Differing = dict[str, dict[str, Row]]
"""By entity and ref, rows that differ."""


def stay(first: Differing, again: Callable[[Differing], Differing]) -> tuple[Differing, Differing]:
    """Which rows of ``first`` have drifted, and which the database changed at each look.

    ``again`` looks again, at the given rows at least, once the views have come past the last look. A row has drifted
    that still differs while the database has what it had at the look before.
    """
    stayed: Differing = {entity: {} for entity in first}
    open_ = first
    for _ in range(1, LOOKS):
        if not any(open_.values()):
            break
        now = again(open_)
        left: Differing = {entity: {} for entity in first}
        for entity, rows in open_.items():
            for ref, before in rows.items():
                if (row := now.get(entity, {}).get(ref)) is not None:
                    (stayed if row.digest == before.digest else left)[entity][ref] = row
        open_ = left
    return stayed, open_


def _by_ref(found: Mapping[str, tuple[int, Iterable[Row]]]) -> Differing:
    return {entity: {row.ref: row for row in rows} for entity, (_, rows) in found.items()}


def mend(settings: Settings, tell: Tell = log.info, rebuilds: bool = False) -> dict[str, Drift]:
    """Measure; republish what has drifted in a minor way and look whether that has mended it; note all of it in
    ``ops.public.drift``. Returns what was found, with what was done.

    Where anything is major a rebuild is what remains, which the caller starts (``rebuilds``) or not. A second call
    finds what is left. Raises TransientError as :func:`measure` does; nothing is noted then.
    """
    found = measure(settings)
    minor: list[Name] = [
        (entity, ref) for entity, drift in found.items() if drift.severity == "minor" for ref in drift.rows
    ]
    for _ in range(ATTEMPTS):
        if not minor:
            break
        requests = republish(settings, minor)
        tell(f"{len(minor)} entities are republished (requests {', '.join(requests)})")
        left = measure(settings)
        minor = [(entity, ref) for entity, ref in minor if ref in left[entity].rows]
    for entity, drift in found.items():
        if drift.severity != "minor":
            continue
        drift.action = "republished"
        if stay := [ref for of, ref in minor if of == entity]:
            # the log says now what the database says, so it is the view
            drift.severity = "major"
            tell(f"{len(stay)} of {entity} still differ, as {stay[0]} does: serving.{entity}_latest is not the log")
    for drift in found.values():
        if drift.severity == "major":
            drift.action = "rebuild started" if rebuilds else "rebuild proposed"
    note(settings, found.values())
    return found


def note(settings: Settings, drifts: Iterable[Drift]) -> None:
    """Append a row for each entity to ``ops.public.drift``."""
    now = datetime.now(UTC)
    with ops.connect(settings) as connection, connection.transaction():
        connection.execute("DELETE FROM drift WHERE measured_at < now() - interval '1 year'")
        for one in drifts:
            connection.execute(
                "INSERT INTO drift (measured_at, entity, compared, missing, extra, changed, refused, moving, severity, "
                "action, examples) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (now, one.entity, one.compared, one.missing, one.extra, one.changed, one.refused, one.moving,
                 one.severity, one.action, json.dumps(one.examples)),
            )  # fmt: skip


def reread(settings: Settings, timeout_seconds: float = 1800.0) -> str:
    """The first half of a rebuild: have the whole database read beside the stream, which makes the log right, and wait
    until it is. The other half folds the log anew (the DAG full_recompute, or ``anabranch batch --full``).

    Returns the request's id. A second call reads again. Raises TransientError if that is not done in time.
    """
    request, deadline = capture.snapshot(settings, TABLES), time.monotonic() + timeout_seconds
    settle(settings, timeout_seconds)  # so it has begun
    while (mark := _mark(settings)) is None or mark.since is not None:
        if time.monotonic() > deadline:
            raise TransientError(f"the snapshot {request} is not complete: anabranch status, anabranch logs connect")
        time.sleep(0.5)
    wait(settings)
    return request


def _mark(settings: Settings) -> Mark | None:
    """How far the mapper of capture is."""
    found = stream.committed(settings)
    return Mark.from_json(found[1]) if found is not None and found[1] else None


def alerts(connection: ops.Connection) -> dict[str, str]:
    """What the last look found that needs somebody: alert → message with the remedy."""
    rows = connection.execute(
        "SELECT * FROM drift WHERE measured_at = (SELECT max(measured_at) FROM drift) AND severity = 'major'"
    ).fetchall()
    return {
        f"{row['entity']} has drifted": f"{row['missing'] + row['extra'] + row['changed']:,} of {row['compared']:,} of "
        f"the shop's {row['entity']}s differ from serving.{row['entity']}_latest, since {row['measured_at']:%H:%M} "
        f"({row['action']}): anabranch drift --look shows some; anabranch drift --rebuild reads the database whole "
        "and folds the log anew"
        for row in rows
    }
