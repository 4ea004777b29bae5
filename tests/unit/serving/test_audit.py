"""A record says the same of itself wherever it is read from; records are shown in the order of the log."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog import exact
from changelog.envelope import encode, envelope
from changelog.reader import Entry
from changelog.records import Place
from changelog.typed import entity_type
from infra.commands_audit import said_of
from runtime.errors import TerminalError
from serving.audit import Question, Record, in_order, plain, read
from tests.unit.changelog.samples import KEY, SAMPLES, TIME, change

pytestmark = pytest.mark.unit

ORDER = SAMPLES["order"]
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def entry(value: bytes | None, topic: str = "changelog.order", key: bytes | None = KEY) -> Entry:
    return Entry(topic, 2, 17, int(AT.timestamp() * 1000), key, value, {})


def record(partition: int, offset: int, seconds: int, **more: Any) -> Record:
    made = {
        "kind": "change", "service": "s", "identifier": "i", "entity": "order", "guest": "g", "ref": "o",
        "change": "update", "reason": None, "current": {}, "original": {}, "archived": True, **more,
    }  # fmt: skip
    return Record(Place("changelog.order", partition, offset), AT + timedelta(seconds=seconds), **made)


def test_a_question_asks_for_something() -> None:
    with pytest.raises(TerminalError, match="--order"):
        Question()


def test_what_is_asked_in_sql_cannot_say_anything_else() -> None:
    asked = Question(service="o'neill", order="' OR true OR '")
    assert asked.condition == "service_name = 'o''neill' AND ref = ''' OR true OR '''"
    assert asked.entities == ("order",)


def test_a_question_is_answered_by_what_fits_all_of_it() -> None:
    one = read(entry(change(ORDER)))
    assert Question(service="shop", identifier="i-1", order="o-1", guest="g-1").fits(one)
    for other in ({"service": "x"}, {"identifier": "x"}, {"order": "x"}, {"guest": "x"}):
        assert not Question(**{"service": "shop", **other}).fits(one)
    event = read(entry(change({**SAMPLES["event"], "ref": "o-1"}), "changelog.event"))
    assert not Question(order="o-1").fits(event), "it is no order, whatever its ref"


@given(
    st.sampled_from(["shop", "i-1", "o-1", "g-1", "é", 'a"b', "x"]),
    st.sampled_from(["service", "identifier", "order", "guest"]),
    st.sampled_from([b"shop", b"\\u0073hop", "é".encode(), b'a\\"b']),
    st.sampled_from([KEY, b"x", None]),
    st.booleans(),
)
def test_what_is_passed_over_by_its_bytes_would_not_have_fitted(
    text: str, what: str, written: bytes, key: bytes | None, whole: bool
) -> None:
    value = change(ORDER).replace(b"shop", written)
    one = entry(value if whole else value[:-1], key=key)
    question = Question(**{what: text})
    assert question.may_fit(one) or not question.fits(read(one))


def test_most_of_a_log_is_passed_over() -> None:
    assert not Question(service="till").may_fit(entry(change(ORDER)))
    assert not Question(guest="g-2").may_fit(entry(change(ORDER)))
    assert Question(service="shop", guest="g-1").may_fit(entry(change(ORDER)))
    assert Question(guest="g-1").may_fit(entry(None)), "a tombstone has a key"


@pytest.mark.parametrize(
    ("value", "kind", "made", "service"),
    [
        (change(ORDER), "change", "create", "shop"),
        (change(ORDER, ORDER), "change", "update", "shop"),
        (change(None, ORDER), "change", "delete", "shop"),
        (change({**ORDER, "status": "LOST"}), "bad", "create", "shop"),
        (b"{", "bad", None, None),
        (b"[1]", "bad", None, None),
        (b'{"provenance": 5, "current": 5}', "bad", "create", None),
        (None, "tombstone", None, None),
        (b"", "tombstone", None, None),
    ],
)
def test_a_record_of_kafka_says_what_it_is(value: bytes | None, kind: str, made: str | None, service: str) -> None:
    one = read(entry(value))
    assert (one.kind, one.change, one.service, one.guest) == (kind, made, service, "g-1")
    assert one.place == Place("changelog.order", 2, 17)
    assert one.append_time == AT
    assert (one.reason is not None) == (kind == "bad")


def test_a_record_without_a_key_is_of_whom_it_says() -> None:
    value = encode(envelope("shop", "i-1", {**ORDER, "status": "LOST"}))
    assert read(entry(value, key=None)).guest == "g-1"
    assert read(entry(change(SAMPLES["guest"]), "changelog.guest", key=b"")).guest == "g-1"


def test_what_the_archive_says_and_what_the_record_says_read_alike() -> None:
    type_ = entity_type("order")
    written = exact.parse(encode({**ORDER, "total": 5.1, "sessionRef": None, "unknown": 1}))
    archived = {
        "ref": "o-1", "guest_ref": "g-1", "session_ref": None, "status": "PLACED", "currency": "GBP", "country": None,
        "total": Decimal("5.1000"),
        "items": [{"sku": "a", "name": "Äpfel", "quantity": Decimal("2.0000"), "unit_price": Decimal("2.5500")}],
        "created_at": "2026-01-31 12:00:00.000000", "modified_at": "2026-01-31 12:00:00.000000",
    }  # fmt: skip
    made = plain(type_, written)
    assert made == plain(type_, archived)
    assert made == {
        "ref": "o-1", "guest_ref": "g-1", "status": "PLACED", "currency": "GBP", "total": Decimal("5.1000"),
        "items": [{"sku": "a", "name": "Äpfel", "quantity": Decimal("2.0000"), "unit_price": Decimal("2.5500")}],
        "created_at": TIME, "modified_at": TIME,
    }  # fmt: skip
    assert b'"total":5.1000' in exact.text_of(made)


@pytest.mark.parametrize(
    "value",
    [5, "text", [1], {"total": "five", "items": 5, "createdAt": "yesterday"}, {"total": True}, {"total": 10**40}],
)
def test_what_does_not_fit_stays_as_it_was_written(value: Any) -> None:
    made = plain(entity_type("order"), value)
    kept = {"total": "total", "items": "items", "createdAt": "created_at"}
    assert made == ({kept[name]: one for name, one in value.items()} if isinstance(value, dict) else value)


def test_amounts_are_rounded_as_columns_are() -> None:
    made = plain(entity_type("order"), {"total": Decimal("0.00005"), "items": [{"quantity": Decimal("-0.00005")}]})
    assert made == {"total": Decimal("0.0001"), "items": [{"quantity": Decimal("-0.0001")}]}


def test_records_are_in_the_order_of_offsets_even_where_the_clock_went_back() -> None:
    expected = [record(0, 1, 0), record(1, 1, 5), record(0, 2, 10), record(0, 3, 7), record(1, 2, 11)]
    shuffled = [expected[number] for number in (3, 0, 4, 2, 1)]
    assert in_order(shuffled) == expected


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"change": "create", "original": None}, "create"),
        ({"change": "delete", "current": None}, "delete"),
        ({"current": {"status": "PAID", "modified_at": "b"}, "original": {"status": "NEW", "modified_at": "a"}},
         "update: status NEW → PAID"),
        ({"current": {"items": [1]}, "original": {"items": [], "country": "FR"}},
         "update: items changed; country FR → None"),
        ({"dead_letter": "changelog.order/0/1"}, "update: was the dead letter changelog.order/0/1"),
        ({"change": "create", "dead_letter": "changelog.order/0/1"}, "create; was the dead letter changelog.order/0/1"),
        ({"kind": "bad", "reason": "not JSON"}, "bad: not JSON"),
        ({"kind": "bad", "reason": "not JSON", "replayed_to": "changelog.order/0/9"},
         "bad: not JSON; replayed to changelog.order/0/9"),
        ({"kind": "tombstone", "change": None}, ""),
    ],
)  # fmt: skip
def test_a_row_says_in_a_few_words_what_a_record_changed(more: dict[str, Any], said: str) -> None:
    assert said_of(record(0, 1, 0, **more)) == said
