"""A guest's first order above an amount, ever."""

from collections.abc import Iterator
from typing import Any

from views.alerting import Alert, alert
from views.matching import History, Seen, Side, Trigger

AMOUNT = 500


def _first(order: Seen, history: History) -> Iterator[tuple[Any, ...]]:
    if next(history.range("order", "", 0, order.offset)).offset == order.offset:
        yield alert(order, order=order["ref"], currency=order["currency"], total=order["total"])


VIEW = Alert(
    name="large_first_order",
    comment=f"The first order of a guest of {AMOUNT} or more, in whatever currency",
    entity="order",
    sides={
        "order": Side(
            "order",
            where=f"original IS NULL AND current.total >= {AMOUNT}",
            order="kafka_offset",
            columns={"ref": "current.ref", "currency": "current.currency", "total": "cast(current.total AS string)"},
        )
    },
    triggers={"order": Trigger(_first)},
    reach_seconds=None,
)
