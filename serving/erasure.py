"""The request of an erasure: what is known of the guest is gathered, and he is hidden at once."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import psycopg
from pyspark.sql.types import StringType

from changelog.erased import digest, is_weak, names_of
from changelog.erasures import check_of, recorded, secret_of
from changelog.positions import to_json
from changelog.sources.cdc import database
from changelog.topics import acknowledged_offsets
from changelog.typed import entity_type, snake
from runtime import faults, ops, trino
from runtime.errors import TerminalError
from runtime.settings import Settings
from serving.audit import Question, Record, audit
from serving.publication import refresh
from serving.whole_log import AT_ONCE, archived_entities, chunks

SCRUBBED = "erased"
"""What stands where a ref stood, for example in a form that was filled in: nobody is called so."""


def request(settings: Settings, ref: str, purge: bool = False, despite_source: bool = False) -> int:
    """Record that a guest is to be erased, and hide him from everything that is served. Returns the erasure's number.

    From here on nothing of the guest goes into the log, and it cannot be taken back. A second call with the same ref
    returns the same number, and lets ``purge`` be asked for later; of one that is done it begins the search again, and
    the rewriting of what has named the guest since. Raises TerminalError while the shop's database still
    has the guest, unless ``despite_source``: capture and drift would want to bring him back for ever.
    """
    if not ref or ref == SCRUBBED:
        raise TerminalError("say whom: the guest's ref")
    with ops.connect(settings) as connection:
        hashed = digest(secret_of(settings), ref.encode())
        row = connection.execute("SELECT erasure, state FROM erasures WHERE digest = %s", (hashed,)).fetchone()
        if row is None:
            if not despite_source and is_in_source(settings, ref):
                raise TerminalError(
                    f"the shop's database still has {ref}: it is the source, and has to delete the guest first. Or say "
                    "--despite-source: nothing of theirs is taken from it any more, and drift will name them"
                )
            records = audit(settings, Question(guest=ref)).records
            values, left_out = identifying(settings, ref, records)
            names = json.dumps(names_of(secret_of(settings), [ref, *(value for value in values if "@" in value)]))
            ends = json.dumps(to_json(acknowledged_offsets(settings)))
            secret = secret_of(settings)
            recorded(settings, connection)  # made with this secret
            with connection.transaction():
                connection.execute("LOCK TABLE erasures IN EXCLUSIVE MODE")
                row = connection.execute(
                    "INSERT INTO erasures (erasure, digest, secret_check, state, ref, identifying, purge, log_end, "
                    "records, names, left_out, steps) SELECT coalesce(max(erasure), 0) + 1, %s, %s, 'requested', %s, "
                    "%s, %s, %s, %s, %s, %s, "
                    "jsonb_build_object('requested', now()) FROM erasures ON CONFLICT (digest) DO UPDATE SET purge = "
                    "erasures.purge OR excluded.purge RETURNING erasure, state",
                    (
                        hashed,
                        check_of(secret),
                        ref,
                        json.dumps(values),
                        purge,
                        ends,
                        json.dumps(counted(records)),
                        names,
                        left_out,
                    ),
                ).fetchone()
            assert row is not None
            faults.point("erase.requested")
        else:
            connection.execute(
                "UPDATE erasures SET purge = purge OR %(purge)s, ref = %(ref)s, finished_at = NULL, "
                "state = CASE state WHEN 'done' THEN 'published' ELSE state END WHERE erasure = %(erasure)s",
                {"purge": purge, "ref": ref, "erasure": row["erasure"]},
            )
    if row["state"] == "requested":
        refresh(settings)
    return int(row["erasure"])


def is_in_source(settings: Settings, ref: str) -> bool:
    """Whether the shop's operational database has this guest."""
    head = f"{settings.cdc.refs}guest-"
    key = ref.removeprefix(head)
    if settings.profile != "full" or not ref.startswith(head) or not key.isdecimal() or int(key) >= 1 << 63:
        return False
    try:
        with database.connect(settings) as shop:
            return shop.execute("SELECT 1 FROM public.customers WHERE id = %s", (int(key),)).fetchone() is not None
    except psycopg.errors.UndefinedTable:
        return False


def counted(records: list[Record]) -> dict[str, dict[str, int]]:
    """Records by topic and kind: what the audit of an erasure keeps of them."""
    found: dict[str, Counter[str]] = {}
    for record in records:
        found.setdefault(record.place.topic, Counter())[record.kind] += 1
    return {topic: dict(kinds) for topic, kinds in sorted(found.items())}


def identifying(settings: Settings, ref: str, records: list[Record]) -> tuple[list[str], int]:
    """What else tells who a guest is, e-mail addresses and the refs of what is his, and how many of these are left out:
    weak ones, which others use in other senses, those that a record of somebody else has too (a session that went over
    to another guest, a shared address), and what stands in the place of an address that is none."""
    said = {pair for record in records for pair in _of(record)}
    found = {value for _, value in said} - {ref}
    good = {value for name, value in said if value in found and not is_weak(value) and (name == "ref" or "@" in value)}
    kept = good - of_others(settings, ref, good)
    return sorted(kept), len(found) - len(kept)


def narrow(settings: Settings, erasure: int) -> None:
    """Leave out of what is looked for what somebody else has by now. Of what is left the search says whose it is."""
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT ref, identifying FROM erasures WHERE erasure = %s", (erasure,)).fetchone()
        if row is None or row["ref"] is None or not row["identifying"]:
            return
        theirs = sorted(of_others(settings, row["ref"], row["identifying"]))
        if theirs:
            connection.execute(
                "UPDATE erasures SET identifying = identifying - %s::text[], left_out = left_out + %s "
                "WHERE erasure = %s AND identifying IS NOT NULL",
                (theirs, len(theirs), erasure),
            )


def of_others(settings: Settings, ref: str, values: Collection[str]) -> set[str]:
    """Those of ``values`` that a valid record with another key has in any of its own fields, as the archive says."""
    lake, found = trino.connect(settings), set()
    for entity, type_ in archived_entities(lake).items() if values else ():
        names = [snake(field.name) for field in entity_type(entity).fields if isinstance(field.dataType, StringType)]
        there = [name for name in names if re.search(rf'\b{name}"? varchar', type_)]
        texts = ", ".join(f"{side}.{name}" for side in ('"current"', "original") for name in there)
        for some in chunks(sorted(values), AT_ONCE):
            _, rows = trino.execute(
                lake,
                f'SELECT DISTINCT value FROM (SELECT ARRAY[{texts}] AS texts FROM lake.archive."{entity}" '
                f"WHERE kind = 'change' AND key <> X'{ref.encode().hex()}') CROSS JOIN UNNEST(texts) AS t(value) "
                f"WHERE value IN ({', '.join(map(trino.literal, some))})",
            )
            found |= {value for (value,) in rows}
    return found


def _of(record: Record) -> Iterator[tuple[str, str]]:
    for side in (record.current, record.original):
        said: dict[str, Any] = side if isinstance(side, dict) else {}
        for name in ("ref", "email"):
            if isinstance(said.get(name), str) and said[name]:
                yield name, said[name]
