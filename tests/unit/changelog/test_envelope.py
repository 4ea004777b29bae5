"""Envelopes: forms, times, and money with every digit."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope import encode, envelope, guest_ref, timestamp

pytestmark = pytest.mark.unit

PROVENANCE = {"apiVersion": "1", "serviceName": "shop", "identifier": "i-1"}


@pytest.mark.parametrize(
    "sides",
    [{"current": {"ref": "a"}}, {"original": {"ref": "a"}}, {"current": {"ref": "a"}, "original": {"ref": "b"}}, {}],
    ids=["create", "delete", "update", "neither"],
)
def test_an_envelope_has_the_sides_that_it_was_given(sides: dict[str, Any]) -> None:
    assert envelope("shop", "i-1", **sides) == {"provenance": PROVENANCE, **sides}


@pytest.mark.parametrize("sides", [("current",), ("original",), ("current", "original")])
@pytest.mark.parametrize("entity", ["guest", "session", "order", "event"])
def test_the_guest_is_found_in_every_form(entity: str, sides: tuple[str, ...]) -> None:
    body = {"ref": "g-1"} if entity == "guest" else {"ref": "x", "guestRef": "g-1"}
    assert guest_ref(entity, dict.fromkeys(sides, body)) == "g-1"


def test_the_guest_of_a_delete_is_found_beside_a_null_current() -> None:
    assert guest_ref("order", {"current": None, "original": {"guestRef": "g-1"}}) == "g-1"


@pytest.mark.parametrize(
    "made", [{}, {"current": {}}, {"current": {"ref": "o-1"}}, {"current": {"guestRef": 5}}, {"current": 5}]
)
def test_an_envelope_without_a_guest_is_an_error(made: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        guest_ref("order", made)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000Z"),
        (datetime(2026, 1, 31, 12, 0, 0, 999_999, tzinfo=UTC), "2026-01-31T12:00:00.999Z"),
        (datetime(2026, 1, 31, 23, 30, tzinfo=timezone(timedelta(hours=-5))), "2026-02-01T04:30:00.000Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_written_in_utc_with_milliseconds(time: datetime, text: str) -> None:
    assert timestamp(time) == text


@given(time=st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29), timezones=st.timezones()))
def test_a_time_loses_less_than_a_millisecond(time: datetime) -> None:
    lost = time.astimezone(UTC) - datetime.fromisoformat(timestamp(time))
    assert timedelta(0) <= lost < timedelta(milliseconds=1)


@given(number=st.integers(0, 20).flatmap(lambda n: st.decimals(-(10**13), 10**13, places=n)))
def test_a_decimal_keeps_every_digit(number: Decimal) -> None:
    assert json.loads(encode({"total": number}), parse_float=Decimal, parse_int=Decimal)["total"] == number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0.1000000000000000055", b"0.1000000000000000055"),
        ("12.3400", b"12.3400"),
        ("-11062.06", b"-11062.06"),
        ("1E-7", b"0.0000001"),
        ("1E+3", b"1000"),
        ("7.000", b"7.000"),
        ("-0.0", b"-0.0"),
    ],
)
def test_a_decimal_is_a_plain_json_number(number: str, text: bytes) -> None:
    assert encode({"total": Decimal(number)}) == b'{"total":' + text + b"}"


def test_text_is_utf_8() -> None:
    assert encode({"name": "Äpfel €"}) == '{"name":"Äpfel €"}'.encode()


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"bytes",
        object(),
        Decimal("Infinity"),
        Decimal("sNaN"),
        Decimal("NaN"),
    ],
)
def test_what_has_no_place_in_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        encode({"total": value})
