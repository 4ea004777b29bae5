"""Orders that followed something a guest looked at: events and orders, joined as both come in."""

from collections.abc import Iterator
from typing import Any

from views.aggregate import Count, Sum
from views.algebra import Field, Key
from views.matching import SECOND, History, Matches, Seen, Side, Trigger

HOUR = 3600
REACH = HOUR + 600
"""A little more than an hour: the two topics have records of one moment appended at different times."""


def _match(order: Seen, group: str) -> tuple[Any, ...]:
    type_, channel = group.split("|", 1)
    return order.partition, order.offset, order.order, type_, channel, order["currency"], order["total"]


def _before(order: Seen, group: str, history: History) -> Iterator[Seen]:
    """The events of a group in the hour before an order."""
    for event in history.range("event", group, order.order - HOUR * SECOND, order.order):
        if event.near(order, REACH):
            yield event


def _of_order(order: Seen, history: History) -> Iterator[tuple[Any, ...]]:
    for group in history.groups("event"):
        if any(True for _ in _before(order, group, history)):
            yield _match(order, group)


def _of_event(event: Seen, history: History) -> Iterator[tuple[Any, ...]]:
    """Orders that are there already, and had no such event yet."""
    for order in history.range("order", "", event.order, event.order + HOUR * SECOND):
        was_there = not order.new and event.near(order, REACH) and history.first((order.offset, event.group))
        if was_there and all(earlier.new for earlier in _before(order, event.group, history)):
            yield _match(order, event.group)


VIEW = Matches(
    name="conversion",
    comment="Orders created within an hour after a VIEW, ADD or CHECKOUT of the same guest, and their value then",
    entity="order",
    sides={
        "order": Side(
            "order",
            where="original IS NULL",
            order="unix_micros(current.created_at)",
            columns={"currency": "current.currency", "total": "cast(current.total AS string)"},
        ),
        "event": Side(
            "event",
            where="original IS NULL AND current.type IN ('VIEW', 'ADD', 'CHECKOUT')",
            order="unix_micros(current.created_at)",
            group="concat(current.type, '|', current.channel)",
        ),
    },
    triggers={"order": Trigger(_of_order), "event": Trigger(_of_event)},
    match=(
        Field("kafka_partition", "int", "partition of the order's creation"),
        Field("order_offset", "bigint", "its offset"),
        Field("created", "bigint", "when the order was created, microseconds since 1970"),
        Field("type", "string", "what the guest did before"),
        Field("channel", "string", "where"),
        Field("currency", "string", "of the order"),
        Field("total", "decimal(18,4)", "of the order"),
    ),
    reach_seconds=REACH,
    keys=(
        Key(Field("day", "date", "day of the orders' creation, UTC"), "cast(timestamp_micros(created) AS date)"),
        Key(Field("type", "string", "what came before: VIEW, ADD or CHECKOUT"), "type"),
        Key(Field("channel", "string", "where it was done: WEB, MOBILE, EMAIL or CALL_CENTER"), "channel"),
        Key(Field("currency", "string", "ISO 4217 code"), "currency"),
    ),
    measures=(
        Count("orders", "orders that followed within an hour; each counts once for each type and channel"),
        Sum("value", "total", "sum of their totals when they were created, in the currency of the row"),
    ),
)  # fmt: skip
