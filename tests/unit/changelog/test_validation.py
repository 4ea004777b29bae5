"""Which records are changes. Everything else has a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.validation import MAX_DEPTH, check, schema
from runtime.settings import ENTITIES
from tests.unit.changelog.samples import KEY, SAMPLES, change

pytestmark = pytest.mark.unit

MUTABLE = ("guest", "session", "order")
CHANGE = (None, "shop", "i-1")
TIMES = [("guest", "createdAt"), ("session", "startedAt"), ("session", "endedAt"), ("order", "modifiedAt")]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def reason(entity: str, value: bytes, key: bytes | None = KEY) -> str:
    """Why a record is bad. Fails where it is a change."""
    verdict = check(entity, key, value)
    assert verdict.reason, "it passes for a change"
    assert verdict[1:] == (None, None)
    return verdict.reason


def event(more: bytes) -> bytes:
    """A good event with a further member written as it is."""
    return change(SAMPLES["event"]).replace(b'"ref":"e-1"', b'"ref":"e-1",' + more)


@pytest.mark.parametrize("entity", ENTITIES)
def test_a_good_record_is_a_change_with_its_provenance(entity: str) -> None:
    assert check(entity, KEY, change(SAMPLES[entity])) == CHANGE


@pytest.mark.parametrize("entity", MUTABLE)
def test_updates_and_deletes_are_changes(entity: str) -> None:
    good = SAMPLES[entity]
    assert check(entity, KEY, change(good, good)) == CHANGE
    assert check(entity, KEY, change(None, good)) == CHANGE


@pytest.mark.parametrize("entity", MUTABLE)
@pytest.mark.parametrize("side", ["current", "original"])
def test_a_null_side_is_an_absent_side(entity: str, side: str) -> None:
    value = change(SAMPLES[entity]) if side == "original" else change(None, SAMPLES[entity])
    assert check(entity, KEY, value[:-1] + b',"%s":null}' % side.encode()) == CHANGE


def test_an_event_is_immutable() -> None:
    good = SAMPLES["event"]
    assert "immutable" in reason("event", change(good, good))
    assert "immutable" in reason("event", change(None, good))


@pytest.mark.parametrize("entity", ENTITIES)
def test_a_change_has_a_side(entity: str) -> None:
    assert reason(entity, change()) == "neither current nor original"


@pytest.mark.parametrize(
    ("entity", "field"),
    [(entity, field) for entity in ENTITIES for field in schema(entity)["$defs"]["entity"]["required"]],
)
def test_a_required_field_is_required_on_both_sides_and_never_null(entity: str, field: str) -> None:
    good = SAMPLES[entity]
    lacking = {name: value for name, value in good.items() if name != field}
    for value in (change(lacking), change(good, lacking), change(None, lacking), change({**good, field: None})):
        found = reason(entity, value)
        assert found.startswith("schema: ")
        assert field in found


@pytest.mark.parametrize("lacking", ["apiVersion", "serviceName", "identifier"])
def test_provenance_is_whole(lacking: str) -> None:
    value = change(SAMPLES["guest"])
    assert lacking in reason("guest", value.replace(lacking.encode(), b"other"))
    assert "provenance" in reason("guest", value.replace(b"provenance", b"origin"))


@pytest.mark.parametrize(
    ("entity", "field", "wrong"),
    [
        ("guest", "ref", 1),
        ("guest", "ref", ""),
        ("guest", "country", ["GB"]),
        ("session", "channel", "PIGEON"),
        ("session", "guestRef", ""),
        ("order", "status", "placed"),
        ("order", "currency", "gbp"),
        ("order", "currency", "GBPX"),
        ("order", "total", "5.10"),
        ("order", "total", True),
        ("order", "total", 10_000_000_000_000),
        ("order", "total", -1e300),
        ("order", "items", {}),
        ("order", "items", [5]),
        ("order", "items", [{"sku": "a", "quantity": 1}]),
        ("order", "items", [{"sku": "a", "quantity": None, "unitPrice": 1}]),
        ("event", "type", "view"),
        ("event", "quantity", "2"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_path(entity: str, field: str, wrong: Any) -> None:
    assert f"(at $.current.{field}" in reason(entity, change({**SAMPLES[entity], field: wrong}))


@pytest.mark.parametrize("total", [0, -5, 9_999_999_999_999, -9_999_999_999_999, 0.00005, 12345.67891])
def test_money_within_the_limits_is_good(total: float) -> None:
    assert check("order", KEY, change({**SAMPLES["order"], "total": total})) == CHANGE


@pytest.mark.parametrize(("entity", "field"), TIMES)
@pytest.mark.parametrize(
    "time",
    [
        "2026-01-31",
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00.000000Z",
        "2026-01-31T12:00:00.000",
        "2026-01-31T12:00:00.000+00:00",
        "2026-01-31T12:00:00.000z",
        "2026-01-31 12:00:00.000Z",
        "2026-02-29T12:00:00.000Z",
        "2026-13-01T12:00:00.000Z",
        "2026-01-31T24:00:00.000Z",
        "2026-01-31T12:00:60.000Z",
        "0000-01-01T00:00:00.000Z",
        "2026-01-31T12:00:00.000Z\n",
        "٢٠٢٦-01-31T12:00:00.000Z",
        1_795_221_339_389,
    ],
)
def test_a_time_that_is_not_utc_with_milliseconds_is_bad(entity: str, field: str, time: str | int) -> None:
    assert f"(at $.current.{field})" in reason(entity, change({**SAMPLES[entity], field: time}))


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "2024-02-29T12:00:00.000Z"])
def test_a_time_of_any_year_is_good(time: str) -> None:
    assert check("guest", KEY, change({**SAMPLES["guest"], "createdAt": time})) == CHANGE


@pytest.mark.parametrize("entity", ENTITIES)
@pytest.mark.parametrize("key", [b"g-2", b"G-1", b"g-1 ", b"", None, b"\xff"])
def test_the_key_is_the_guest(entity: str, key: bytes | None) -> None:
    assert "is not the guest's ref 'g-1'" in reason(entity, change(SAMPLES[entity]), key)


def test_a_key_outside_ascii_is_utf_8() -> None:
    value = change({**SAMPLES["guest"], "ref": "gäst"})
    assert check("guest", "gäst".encode(), value) == CHANGE
    assert reason("guest", value, "gäst".encode("latin-1"))


@pytest.mark.parametrize("entity", MUTABLE)
def test_both_sides_are_of_one_entity_of_one_guest(entity: str) -> None:
    good = SAMPLES[entity]
    assert "original.ref 'x' is not current.ref" in reason(entity, change(good, {**good, "ref": "x"}))
    if entity != "guest":
        assert "a change of guest" in reason(entity, change(good, {**good, "guestRef": "g-2"}))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"{",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": "\\ud800"}',
        b"\xff\xfe\x00",
        b'{"a": "\xe4"}',
        b"\xef\xbb\xbf{}",
        b"[" * 3000,
        b"{} {}",
        b"\x00",
    ],
)
def test_what_is_not_json_in_utf_8_is_bad(value: bytes) -> None:
    """An empty value is among them: a tombstone is told apart before, and never is a change."""
    assert reason("order", value).startswith("not JSON: ")


@pytest.mark.parametrize("value", [b"[]", b"1", b'"text"', b"null", b"true", b"{}", b'{"provenance": {}}'])
def test_json_that_is_no_envelope_is_bad(value: bytes) -> None:
    assert reason("order", value).startswith("schema: ")


@pytest.mark.parametrize("wrong", [5, "text", [], False])
def test_a_side_that_is_no_object_is_bad(wrong: Any) -> None:
    assert "(at $.current)" in reason("order", change(wrong))


@pytest.mark.parametrize("entity", ENTITIES)
def test_unknown_fields_are_kept_and_ignored(entity: str) -> None:
    assert check(entity, KEY, change({**SAMPLES[entity], "later": {"version": [1, None, "x"]}})) == CHANGE


def test_depth_has_a_limit() -> None:
    deepest = MAX_DEPTH - 2  # the envelope and the entity are two levels
    assert check("event", KEY, event(b'"x":' + b"[" * deepest + b"]" * deepest)) == CHANGE
    for depth in (deepest + 1, 300, 1000):
        assert "nested deeper than 100" in reason("event", event(b'"x":' + b"[" * depth + b"]" * depth))


@pytest.mark.parametrize("depth", [200, 254, 255, 300, 1000])
@pytest.mark.parametrize("around", [b'{"x":%s}', b'{"current":{"x":%s}}', b"%s"])
def test_what_is_nested_deeply_and_not_valid_either_is_bad_like_any_other(around: bytes, depth: int) -> None:
    """The validator goes less deep than the parser, and raises."""
    assert reason("event", around % (b'{"a":' * depth + b"1" + b"}" * depth)).startswith("schema")


def test_many_brackets_are_not_depth() -> None:
    assert check("event", KEY, event(b'"x":[' + b"[]," * 200 + b"[]]")) == CHANGE


def test_a_number_of_400_digits_is_bad() -> None:
    assert "400 digits" in reason("event", event(b'"x":0.' + b"1" * 400))
    assert check("event", KEY, event(b'"x":0.' + b"1" * 399)) == CHANGE


def test_a_text_of_400_digits_is_good() -> None:
    assert check("event", KEY, event(b'"page":"' + b"1" * 400 + b'"')) == CHANGE


def test_a_long_message_is_shortened() -> None:
    assert len(reason("order", change({**SAMPLES["order"], "status": "X" * 5000}))) < 400


@given(entity=st.sampled_from(ENTITIES), key=st.none() | st.binary(max_size=5), value=st.binary(max_size=30))
def test_no_bytes_raise(entity: str, key: bytes | None, value: bytes) -> None:
    assert check(entity, key, value).reason


@given(entity=st.sampled_from(ENTITIES), field=st.integers(0, 8), wrong=JSON)
def test_no_value_in_any_field_raises_and_the_verdict_is_the_same_again(entity: str, field: int, wrong: Any) -> None:
    good = SAMPLES[entity]
    value = change({**good, list(good)[field % len(good)]: "?"}).replace(b'"?"', json.dumps(wrong).encode())
    assert check(entity, KEY, value) == check(entity, KEY, value)


def test_an_unknown_entity_has_no_schema() -> None:
    with pytest.raises(FileNotFoundError):
        schema("basket")
