"""Carts that were left: something was added, and then neither more nor an order came for half an hour."""

from collections.abc import Iterator
from typing import Any

from views.alerting import Alert, alert
from views.matching import SECOND, History, Seen, Side, Trigger

PAUSE = 1800


def _left(added: Seen, history: History) -> Iterator[tuple[Any, ...]]:
    until = added.time + PAUSE * SECOND
    later = (seen for seen in history.range("added", "", added.time, until) if seen.offset > added.offset)
    if not any(True for _ in later) and not any(True for _ in history.range("order", "", added.time, until)):
        yield alert(added, channel=added["channel"], sku=added["sku"], event=added["ref"])


VIEW = Alert(
    name="cart_abandoned",
    comment="Guests who added something and then neither added more nor ordered for 30 minutes",
    entity="event",
    sides={
        "added": Side(
            "event",
            where="original IS NULL AND current.type = 'ADD'",
            columns={"ref": "current.ref", "channel": "current.channel", "sku": "coalesce(current.sku, '')"},
        ),
        "order": Side("order", where="original IS NULL"),
    },
    triggers={"added": Trigger(_left, after_seconds=PAUSE)},
    reach_seconds=PAUSE,
)
