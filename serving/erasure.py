"""The request of an erasure: what is known of the guest is gathered, and he is hidden at once."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg

from changelog.erased import digest
from changelog.erasures import check_of, recorded, secret_of
from changelog.positions import to_json
from changelog.sources.cdc import database
from changelog.topics import acknowledged_offsets
from runtime import faults, ops, trino
from runtime.errors import TerminalError
from runtime.settings import Settings
from serving.audit import Question, Record, audit
from serving.publication import refresh

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
            values = identifying(settings, ref, records)
            ends = json.dumps(to_json(acknowledged_offsets(settings)))
            secret = secret_of(settings)
            recorded(settings, connection)  # made with this secret
            with connection.transaction():
                connection.execute("LOCK TABLE erasures IN EXCLUSIVE MODE")
                row = connection.execute(
                    "INSERT INTO erasures (erasure, digest, secret_check, state, ref, identifying, purge, log_end, "
                    "records, steps) SELECT coalesce(max(erasure), 0) + 1, %s, %s, 'requested', %s, %s, %s, %s, %s, "
                    "jsonb_build_object('requested', now()) FROM erasures ON CONFLICT (digest) DO UPDATE SET purge = "
                    "erasures.purge OR excluded.purge RETURNING erasure, state",
                    (hashed, check_of(secret), ref, json.dumps(values), purge, ends, json.dumps(counted(records))),
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


def identifying(settings: Settings, ref: str, records: list[Record]) -> list[str]:
    """What else tells who a guest is: e-mail addresses and the refs of what is his, but for those that another guest
    has too."""
    found = {value for record in records for value in _of(record)} - {ref}
    emails = sorted(value for value in found if "@" in value)
    if emails:
        named = ", ".join(map(trino.literal, emails))
        _, rows = trino.execute(
            trino.connect(settings),
            f"SELECT DISTINCT email FROM serving.guest_latest WHERE email IN ({named}) AND ref <> {trino.literal(ref)}",
        )
        found -= {email for (email,) in rows}
    return sorted(found)


def _of(record: Record) -> Iterator[str]:
    for side in (record.current, record.original):
        said: dict[str, Any] = side if isinstance(side, dict) else {}
        for name in ("ref", "email"):
            if isinstance(said.get(name), str) and said[name]:
                yield said[name]
