"""What a comparison says, and when a difference is accounted for."""

from typing import Any, cast

import pytest

from serving.compare import Comparison, Difference, _compare, described
from serving.published import Served
from serving.sql import Pin

pytestmark = pytest.mark.unit


def test_rows_that_are_the_same_take_one_line() -> None:
    report = Comparison("r", False, [Difference("traffic", rows=7)])
    assert described(report) == "run r\ntraffic: all 7 rows are the same"
    assert report.unexplained == []


def test_rows_that_differ_are_counted_by_kind_and_measure_and_shown() -> None:
    different = Difference(
        "revenue", rows=9, only_served=1, only_run=2, changed=3, measures={"orders": 3, "revenue": 1},
        examples=[{"hour": "h", "orders_served": 1, "orders_run": 2}],
    )  # fmt: skip
    assert different.differing == 6
    text = described(Comparison("r", True, [different]))
    assert "of 9 rows 6 differ: 1 only served, 2 only in the run, 3 changed (orders in 3, revenue in 1)" in text
    assert "hour=h, orders_served=1, orders_run=2" in text
    assert "other code" in text


@pytest.mark.parametrize(
    ("code_changed", "late_copies", "apart", "unexplained"),
    [(False, 0, 0, ["traffic"]), (True, 0, 0, []), (False, 2, 0, []), (False, 0, 5, [])],
)
def test_a_difference_is_accounted_for_by_code_late_copies_or_a_cut_that_is_not_the_same(
    code_changed: bool, late_copies: int, apart: int, unexplained: list[str]
) -> None:
    view = Difference("traffic", rows=1, changed=1, late_copies=late_copies, records_apart=apart)
    assert Comparison("r", code_changed, [view]).unexplained == unexplained


@pytest.mark.parametrize(("examples", "shown"), [(20, [{"guest_ref": "g-1"}]), (0, [])])
def test_where_somebody_was_erased_between_the_two_rows_are_counted_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, examples: int, shown: list[dict[str, str]]
) -> None:
    def answer(_lake: Any, text: str) -> tuple[list[str], list[list[Any]]]:
        return (["guest_ref"], [["g-1"]]) if "LIMIT" in text else ([], [[3, 1, 0, 0, 0, 0]])

    monkeypatch.setattr("serving.compare.trino.execute", answer)
    served = Served("guest_spend", 1, "r", 1, 5, {}, 7, 3, None)
    found = _compare(cast(Any, None), served, Pin(8, 1, 5), {}, examples)
    assert (found.only_served, found.examples) == (1, shown)
