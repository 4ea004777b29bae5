"""The shop's database and what is captured of it: what the tests of capture on real services share."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg

from changelog.envelope import envelope
from changelog.exact import canonical, parse, text_of
from changelog.sources.shop.application import Application
from changelog.validation import check
from runtime.settings import Settings, entity_of
from tests.services import query, read_log, run, status, until

TABLES = {
    "guest_latest": "SELECT 'shop-guest-' || id, first_name, last_name, email, country, created_at, modified_at "
    "FROM customers",
    "session_latest": "SELECT 'shop-session-' || id, 'shop-guest-' || customer_id, channel, started_at, ended_at, "
    "modified_at FROM sessions",
    "order_latest": "SELECT 'shop-order-' || id, 'shop-guest-' || customer_id, 'shop-session-' || session_id, status, "
    "currency, country, round(total, 4), created_at, modified_at, coalesce((SELECT string_agg(concat_ws(':', sku, "
    "coalesce(name, '-'), round(quantity, 4), round(unit_price, 4)), ',' ORDER BY line) FROM order_items "
    "WHERE order_id = orders.id), '') FROM orders",
}
VIEWS = {
    "guest_latest": "SELECT ref, first_name, last_name, email, country, created_at, modified_at "
    "FROM serving.guest_latest",
    "session_latest": "SELECT ref, guest_ref, channel, started_at, ended_at, modified_at FROM serving.session_latest",
    "order_latest": "SELECT ref, guest_ref, session_ref, status, currency, country, total, created_at, modified_at, "
    "array_join(transform(items, i -> i.sku || ':' || coalesce(i.name, '-') || ':' || CAST(i.quantity AS varchar) || "
    "':' || CAST(i.unit_price AS varchar)), ',') FROM serving.order_latest",
}


@contextmanager
def connected(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to the shop's database, as its application."""
    with psycopg.connect(settings.shop.dsn, autocommit=True, connect_timeout=5) as connection:
        yield connection


def tables(settings: Settings) -> dict[str, set[tuple[Any, ...]]]:
    """What the database says, for each view. Taken in one transaction."""
    with connected(settings) as shop, shop.transaction():
        shop.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return {view: {_plain(row) for row in shop.execute(sql)} for view, sql in TABLES.items()}


def views(settings: Settings) -> dict[str, set[tuple[Any, ...]]]:
    """What the merged views say of the shop's entities."""
    return {
        view: {_plain(row) for row in query(settings, f"{sql} WHERE ref LIKE 'shop-%'")} for view, sql in VIEWS.items()
    }


def _plain(row: Any) -> tuple[Any, ...]:
    """Times to milliseconds, as the log has them, whatever the time zone of the connection."""
    return tuple(int(value.timestamp() * 1000) if isinstance(value, datetime) else value for value in row)


def difference(settings: Settings) -> str:
    """A short text of what differs between database and views; empty if nothing does."""
    there, here, found = tables(settings), views(settings), []
    for view, rows in there.items():
        if missing := rows - here[view]:
            found.append(f"{view} lacks {len(missing)}: {sorted(map(str, missing))[:2]}")
        if more := here[view] - rows:
            found.append(f"{view} has {len(more)} too many: {sorted(map(str, more))[:2]}")
    return "; ".join(found)


def await_equal(settings: Settings, seconds: float = 120) -> None:
    """Wait until the views say what the quiet database says, and check the log that made them."""
    last = ["not compared"]

    def equal() -> bool:
        last[0] = difference(settings)
        return not last[0]

    try:
        until(equal, seconds, "the views are the database")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last[0]}") from error
    assert_log_holds(settings)


def captured(settings: Settings) -> list[tuple[str, str, dict[str, Any], bool]]:
    """Entity, guest, envelope and whether it is valid, of every record about the shop, in the order of partitions."""
    found = []
    for record in sorted(read_log(settings), key=lambda record: (record.topic, record.partition, record.offset)):
        if record.value and b'"shop-' in record.value:
            entity = entity_of(record.topic)
            valid = check(entity, record.key, record.value).reason is None
            found.append((entity, (record.key or b"").decode(), parse(record.value), valid))
    return found


def assert_log_holds(settings: Settings) -> None:
    """No change is in the log twice, every chain holds, and every record changes something."""
    said: dict[tuple[str, str, str], str] = {}
    identities: Counter[tuple[str, str, str]] = Counter()
    for entity, guest, made, valid in captured(settings):
        current, original = made.get("current"), made.get("original")
        ref = (current or original or {})["ref"]
        identities[entity, guest, made["provenance"]["identifier"]] += 1
        before = said.get((entity, guest, ref), "null")
        assert canonical(original) == before, f"the chain of {ref} is broken at {made['provenance']}"
        assert canonical(current) != before, f"{made['provenance']} changes nothing"
        if valid:
            said[entity, guest, ref] = canonical(current)
    twice = [identity for identity, number in identities.items() if number > 1]
    assert twice == [], "changes are in the log twice"


def meddle(settings: Settings, changes: Mapping[str, dict[str, Any] | None]) -> None:
    """Somebody writes of the shop's entities into the log, behind the shop's back. ``changes``: by ref what is to be
    different of the newest version, or None where it is to be deleted; one that there is not is made as a guest."""
    newest = {}
    for entity, guest, made, valid in captured(settings):
        if valid:
            newest[guest, (made.get("current") or made["original"])["ref"]] = entity, made.get("current")
    # An order that went from one guest to another is deleted in the log of the one, and there in that of the other.
    said = {ref: found for (_, ref), found in newest.items() if found[1] is not None}
    lines = []
    for number, (ref, change) in enumerate(changes.items()):
        entity, original = said.get(ref, ("guest", None))
        current = None if change is None else {**(original or {"ref": ref}), **change}
        made = envelope("somebody", f"mistake-{number}-{ref}-{len(said)}-{time.time()}", current, original)
        lines.append(text_of({"entity": entity, "envelope": made}) + b"\n")
    path = settings.home / "mistake.jsonl"
    path.write_bytes(b"".join(lines))
    run("load", str(path))


@contextmanager
def writing(settings: Settings, seed: int, rate: float) -> Iterator[Application]:
    """The application at work in the background; where the database goes away it comes back to it."""
    over = threading.Event()
    with connected(settings) as first:
        application = Application(first, seed)
        failures: list[BaseException] = []

        def work() -> None:
            while not over.is_set():
                try:
                    with connected(settings) as shop:
                        application.connection = shop
                        application.run(rate, 3600, over.is_set)
                except psycopg.OperationalError:
                    over.wait(0.2)
                except BaseException as error:
                    failures.append(error)
                    raise

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield application
        finally:
            over.set()
            thread.join()
    assert failures == []


def cdc(field: str) -> Any:
    """What the service ``cdc`` last said of itself."""
    return (status()["cdc"]["detail"] or {}).get(field)
