"""Entities of the shop said again: what the database has of them goes through the stream, and the mapper writes what
differs from the log.

The content has to take its place in the order of commits, without locking anything of the shop's. So a request is two
rows in a table that is captured: one that opens it, then one with the content, read in between. The mapper leaves out
what the stream changed between the two: that is newer than what was read, and in the log already.

What is read must be no older than the opening row. PostgreSQL hands a transaction to the stream once its commit is on
disk, and shows it to others a moment later; so reading waits until every transaction is over that had begun before the
opening row was committed.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from changelog.sources.cdc import database
from changelog.sources.cdc.database import REPUBLICATIONS
from changelog.sources.cdc.mapping import ENTITY, KEYS, TABLES
from runtime import faults
from runtime.errors import TransientError
from runtime.settings import Settings

Name = tuple[str, str]
"""entity, ref."""

AT_ONCE = 200
"""Entities of one request."""

PATIENCE_SECONDS = 60.0


def republish(settings: Settings, names: Sequence[Name]) -> list[str]:
    """Have the mapper say of each of ``names`` what the database has of it now, or that it is not there. Returns the
    requests' ids, which the identifiers of what is written have in them.

    It does not wait until that is done. What the mapper never gets to (it was killed between the two rows) is left as
    it is; a second call is another request, and writes nothing where the first has mended it. Raises TransientError if
    the database does not answer, or a transaction of the shop's stays open for long.
    """
    requests = []
    with database.connect(settings) as shop:
        for at in range(0, len(names), AT_ONCE):
            requests.append(_request(settings, shop, names[at : at + AT_ONCE]))
    return requests


def _request(settings: Settings, shop: database.Connection, names: Sequence[Name]) -> str:
    request = uuid.uuid4().hex[:12]
    shop.execute(f"DELETE FROM {REPUBLICATIONS}")  # of one that was killed
    shop.execute(f"INSERT INTO {REPUBLICATIONS} (request) VALUES (%s)", (request,))
    _await_older(shop)
    faults.point("republish.opened")
    parts = ", ".join(f"'{table}', {_rows(table)}" for table in TABLES)
    keys = {f"{entity}s": _keys(settings.cdc.refs, entity, names) for entity in set(ENTITY.values())}
    with shop.transaction():
        shop.execute(
            f"INSERT INTO {REPUBLICATIONS} (request, content) SELECT %(request)s, "
            f"json_build_object('names', %(names)s::json, 'rows', json_build_object({parts}))::text",
            {"request": request, "names": orjson.dumps(names).decode(), **keys},
        )
        shop.execute(f"DELETE FROM {REPUBLICATIONS}")
    return request


def _rows(table: str) -> str:
    """SQL: a JSON array of the rows that make the entities asked for."""
    return (
        f"(SELECT coalesce(json_agg(to_jsonb(t)), '[]') FROM public.{table} t "
        f"WHERE t.{KEYS[table][0]} = ANY(%({ENTITY[table]}s)s))"
    )


def _keys(prefix: str, entity: str, names: Sequence[Name]) -> list[int]:
    """The database's keys of refs; one that has none there is in no row."""
    head = f"{prefix}{entity}-"
    found = [ref.removeprefix(head) for of, ref in names if of == entity and ref.startswith(head)]
    return [int(key) for key in found if key.isdecimal() and int(key) < 1 << 63]


def _await_older(shop: database.Connection) -> None:
    """Wait until every transaction is over that may have been committed before now."""
    now: Any = shop.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        oldest: Any = shop.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint").fetchone()
        if oldest[0] > now[0]:
            return
        if time.monotonic() > deadline:
            raise TransientError(
                f"a transaction in the shop's database has been open for {PATIENCE_SECONDS:.0f} s "
                "(pg_stat_activity); what it changed cannot be seen yet: try again when it is over"
            )
        time.sleep(0.05)
