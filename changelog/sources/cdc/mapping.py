"""Rows of the shop's tables → entities of the log. Pure.

Only the columns named here reach the log: one that is added to a table stays in the shop until somebody names it.

An order carries the ``line`` of each of its items, a field that readers ignore. So the rows of an order can be told
from the order itself, and what the log last said of it is all that has to be remembered of them.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from changelog.envelope import Entity, timestamp

Row = Mapping[str, Any]
"""Column → value, as Debezium writes it in JSON: numerics and times are texts."""

UNAVAILABLE = "__debezium_unavailable_value"
"""Stands for a large value (TOAST) that an update did not touch and the database did not send."""

TABLES = ("customers", "sessions", "orders", "order_items")
"""What is captured, in the order in which it is read whole."""

ENTITY = {"customers": "guest", "sessions": "session", "orders": "order", "order_items": "order"}

KEYS = {"customers": ("id",), "sessions": ("id",), "orders": ("id",), "order_items": ("order_id", "line")}


def ref_of(prefix: str, table: str, row: Row) -> str:
    """The ref of the entity that a row is, or is part of: ``shop-order-17``."""
    return f"{prefix}{ENTITY[table]}-{row[KEYS[table][0]]}"


def refs_of(prefix: str, table: str, row: Row) -> set[str]:
    """The refs that a row says: its entity's and its guest's."""
    found = {ref_of(prefix, table, row)} if row.get(KEYS[table][0]) is not None else set()
    return found | ({_guest(prefix, row["customer_id"])} if row.get("customer_id") is not None else set())


def head(prefix: str, table: str, row: Row, known: Entity) -> Entity:
    """The entity that a row of any table but ``order_items`` is, an order without its items.

    What is null is left out. A value that was not sent is what ``known`` says, the entity as it was before.
    """
    made: Entity = {"ref": ref_of(prefix, table, row)}
    for field, column, convert in _FIELDS[table]:
        value = row.get(column)
        if value == UNAVAILABLE:
            value = known.get(field)
        elif value is not None:
            value = convert(prefix, value)
        if value is not None:
            made[field] = value
    return made


def item(row: Row, known: Entity) -> Entity:
    """An item of an order, from a row of ``order_items``; ``known`` as in :func:`head`."""
    made: Entity = {"line": row["line"]}
    for field, column, convert in _FIELDS["order_items"]:
        value = row.get(column)
        if value == UNAVAILABLE:
            value = known.get(field)
        elif value is not None:
            value = convert("", value)
        if value is not None:
            made[field] = value
    return made


def with_items(order: Entity, items: Iterable[Entity]) -> Entity:
    """The whole order: its items in the order of their lines."""
    return {**order, "items": sorted(items, key=lambda one: int(one["line"]))}


def lines(order: Entity) -> dict[int, Entity] | None:
    """The items of a whole order, by line; None if somebody else wrote it, without them. Inverse of
    :func:`with_items`."""
    items = order.get("items", [])
    return {int(one["line"]): one for one in items} if all("line" in one for one in items) else None


def whole(before: Row | None, after: Row) -> Row:
    """``after`` with what was not sent put in from ``before``, as far as that has it."""
    if before is None or UNAVAILABLE not in after.values():
        return after
    return {column: before.get(column) if value == UNAVAILABLE else value for column, value in after.items()}


def _text(_prefix: str, value: Any) -> Any:
    return value


def _amount(_prefix: str, value: Any) -> Any:
    """A number with every digit that the database has. What is none (NaN, Infinity) stays the text that it is."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return value
    return number if number.is_finite() else value


def _time(_prefix: str, value: Any) -> Any:
    """UTC with milliseconds; what is no time of our era (infinity) stays the text that it is."""
    try:
        return timestamp(datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        return value


def _guest(prefix: str, value: Any) -> str:
    return f"{prefix}guest-{value}"


def _session(prefix: str, value: Any) -> str:
    return f"{prefix}session-{value}"


_FIELDS: dict[str, tuple[tuple[str, str, Callable[[str, Any], Any]], ...]] = {
    "customers": (
        ("firstName", "first_name", _text),
        ("lastName", "last_name", _text),
        ("email", "email", _text),
        ("country", "country", _text),
        ("createdAt", "created_at", _time),
        ("modifiedAt", "modified_at", _time),
    ),
    "sessions": (
        ("guestRef", "customer_id", _guest),
        ("channel", "channel", _text),
        ("startedAt", "started_at", _time),
        ("endedAt", "ended_at", _time),
        ("modifiedAt", "modified_at", _time),
    ),
    "orders": (
        ("guestRef", "customer_id", _guest),
        ("sessionRef", "session_id", _session),
        ("status", "status", _text),
        ("currency", "currency", _text),
        ("country", "country", _text),
        ("total", "total", _amount),
        ("createdAt", "created_at", _time),
        ("modifiedAt", "modified_at", _time),
    ),
    "order_items": (
        ("sku", "sku", _text),
        ("name", "name", _text),
        ("quantity", "quantity", _amount),
        ("unitPrice", "unit_price", _amount),
    ),
}
