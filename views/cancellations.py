"""Bursts of cancellations: the third order of one guest cancelled within an hour."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from views.alerting import Alert, alert
from views.matching import SECOND, History, Seen, Side, Trigger

MANY = 3
WITHIN = 3600


def _burst(cancelled: Seen, history: History) -> Iterator[tuple[Any, ...]]:
    window = history.range("cancelled", "", cancelled.time - WITHIN * SECOND, cancelled.time)
    so_far = list(islice((seen for seen in window if seen.offset <= cancelled.offset), MANY + 1))
    if len(so_far) == MANY:
        yield alert(cancelled, orders=[seen["ref"] for seen in so_far])


VIEW = Alert(
    name="cancellations",
    comment="Guests of whom three orders were cancelled within an hour; more in the same hour do not count again",
    entity="order",
    sides={
        "cancelled": Side(
            "order",
            where="current.status = 'CANCELLED' AND (original IS NULL OR original.status <> 'CANCELLED')",
            columns={"ref": "current.ref"},
        )
    },
    triggers={"cancelled": Trigger(_burst)},
    reach_seconds=WITHIN,
)
