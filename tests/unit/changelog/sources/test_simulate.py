"""The simulated shop: deterministic, valid, and true to the chain rule."""

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.producer import Record
from changelog.sources.simulate import Shop
from changelog.validation import check
from runtime.errors import TerminalError

pytestmark = pytest.mark.unit

START = "2026-01-31T12:00:00"
SHARES = {"duplicates": 0.1, "late": 0.3, "broken": 0.05}


def shop(seed: int = 7, /, **options: float) -> Shop:
    return Shop(seed, START, **options)


def is_broken(record: Record) -> bool:
    return b"-broken-" in (record.key or b"")


def parsed(record: Record) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(record.value or b"", parse_float=Decimal)
    return made


def changes(records: list[Record]) -> list[Record]:
    """Without the broken ones, each once."""
    return list(dict.fromkeys(record for record in records if not is_broken(record)))


@pytest.mark.parametrize("options", [{}, SHARES, {"rate": 5}])
def test_the_same_seed_options_and_start_give_the_same_records(options: dict[str, float]) -> None:
    assert list(shop(**options).records(500)) == list(shop(**options).records(500))


@pytest.mark.parametrize(
    "other", [Shop(8, START), Shop(7, "2026-01-31T12:00:01"), Shop(7, START, late=0.5), Shop(7, START, rate=10)]
)
def test_another_seed_option_or_start_gives_others(other: Shop) -> None:
    assert list(other.records(500)) != list(shop().records(500))


def test_identifiers_of_different_seeds_never_meet() -> None:
    mine, others = (
        {parsed(record)["provenance"]["identifier"] for record in shop(seed).records(500)} for seed in (1, 2)
    )
    assert len(mine) == len(others) == 500
    assert not mine & others


@given(first=st.integers(0, 60), second=st.integers(0, 60))
def test_a_run_in_two_parts_is_the_same_run(first: int, second: int) -> None:
    parts = shop(**SHARES)
    assert [*parts.records(first), *parts.records(second)] == list(shop(**SHARES).records(first + second))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_original_is_always_what_was_last_said(seed: int) -> None:
    last: dict[tuple[str, str], Any] = {}
    for record in changes(list(shop(seed, **SHARES).records(400))):
        made = parsed(record)
        current, original = made.get("current"), made.get("original")
        said: dict[str, Any] = current or original or {}
        entity = (record.topic, said["ref"])
        assert last.get(entity) == original
        last[entity] = current


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_every_record_is_valid_unless_it_is_broken_on_purpose(seed: int) -> None:
    for record in shop(seed, **SHARES).records(400):
        reason = check(record.topic.removeprefix("changelog."), record.key, record.value or b"").reason
        assert (reason is not None) == is_broken(record), reason


def test_a_shop_makes_every_form_of_every_entity() -> None:
    forms: dict[str, set[tuple[bool, bool]]] = {}
    statuses = set()
    for record in shop().records(4000):
        made = parsed(record)
        forms.setdefault(record.topic, set()).add(("original" in made, "current" in made))
        if record.topic == "changelog.order" and "current" in made:
            statuses.add(made["current"]["status"])
    created, updated, deleted = (False, True), (True, True), (True, False)
    assert forms == {
        "changelog.guest": {created, updated, deleted},
        "changelog.order": {created, updated, deleted},
        "changelog.session": {created},
        "changelog.event": {created},
    }
    assert statuses == {"PLACED", "PAID", "SHIPPED", "DELIVERED", "CANCELLED"}


def test_totals_are_exact() -> None:
    for record in shop().records(2000):
        order = parsed(record).get("current")
        if record.topic == "changelog.order" and order:
            assert order["total"] == sum(item["quantity"] * item["unitPrice"] for item in order["items"])


def test_shares_are_about_what_was_asked_for() -> None:
    made = shop(**SHARES)
    records = list(made.records(4000))
    assert len(records) == 4000
    assert made.made["duplicate"] / 4000 == pytest.approx(0.1, abs=0.02)
    assert made.made["broken"] / 4000 == pytest.approx(0.05, abs=0.015)
    assert made.made["late"] / made.made["event"] == pytest.approx(0.3, abs=0.03)
    assert made.made["broken"] == sum(map(is_broken, records))
    assert made.made["duplicate"] == 4000 - made.made["broken"] - len(changes(records))
    assert {None, b"", b"{", b"\xff\xfe\x00"} <= {record.value for record in records if is_broken(record)}


def test_what_was_made_is_counted_by_entity() -> None:
    made = shop()
    topics = Counter(record.topic.removeprefix("changelog.") for record in made.records(1000))
    assert made.made == topics


def test_a_shop_without_shares_makes_no_duplicates_late_or_broken_ones() -> None:
    made = shop()
    records = list(made.records(1000))
    assert len(set(records)) == 1000
    assert not {"duplicate", "late", "broken"} & set(made.made)


def test_time_begins_at_the_start_and_goes_by_the_rate() -> None:
    times = [
        parsed(record)["current"]["createdAt"]
        for record in shop(rate=2).records(300)
        if record.topic == "changelog.event"
    ]
    assert times == sorted(times)
    assert f"{START}.000Z" < times[0] < times[-1] <= "2026-01-31T12:02:30.000Z"


def test_late_events_lie_between_an_hour_and_four_days_back() -> None:
    start = datetime.fromisoformat(START + "Z")
    late = [
        start - datetime.fromisoformat(parsed(record)["current"]["createdAt"])
        for record in shop(late=1, rate=1_000_000).records(500)
        if record.topic == "changelog.event"
    ]
    hours = [time.total_seconds() / 3600 for time in late]
    assert min(hours) > 0.99
    assert 90 < max(hours) <= 96


@pytest.mark.parametrize("start", [START + "Z", START + "+00:00", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00"])
def test_a_start_without_a_zone_is_utc(start: str) -> None:
    assert list(Shop(7, start).records(20)) == list(shop().records(20))


@pytest.mark.parametrize("start", ["", "yesterday", "2026-02-30"])
def test_a_start_that_is_no_time_is_an_error(start: str) -> None:
    with pytest.raises(TerminalError, match="is not a time in ISO 8601"):
        Shop(7, start)
