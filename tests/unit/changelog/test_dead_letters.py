"""The file of dead letters: what is taken out can be mended, and what comes back is a change or has a reason."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.dead_letters import DeadLetter, Mended, Refused, line_of, mended
from changelog.records import Identity, Place
from changelog.validation import check
from tests.unit.changelog.samples import KEY, SAMPLES, change

pytestmark = pytest.mark.unit

PLACE = Place("changelog.order", 2, 17)
TIME = datetime(2026, 1, 31, 12, tzinfo=UTC)
GOOD = change(SAMPLES["order"])


def letter(value: bytes, key: bytes | None = KEY, place: Place = PLACE) -> DeadLetter:
    return DeadLetter(place, "it is bad", TIME, key, value)


def exported(value: bytes, key: bytes | None = KEY) -> dict[str, Any]:
    line = line_of(letter(value, key))
    assert b"\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def brought(line: dict[str, Any] | bytes) -> Mended:
    made = mended(line if isinstance(line, bytes) else json.dumps(line).encode())
    assert isinstance(made, Mended), made
    return made


def refused(line: dict[str, Any] | bytes) -> str:
    made = mended(line if isinstance(line, bytes) else json.dumps(line).encode())
    assert isinstance(made, Refused), made
    return made.reason


def test_a_line_says_which_dead_letter_it_is_and_holds_it_whole() -> None:
    broken = GOOD.replace(b'"PLACED"', b'"LOST"')
    assert exported(broken) == {
        "topic": "changelog.order", "partition": 2, "offset": 17, "entity": "order", "reason": "it is bad",
        "append_time": "2026-01-31T12:00:00.000Z", "key": "g-1", "key_encoding": "utf-8", "value": broken.decode(),
        "value_encoding": "utf-8", "envelope": json.loads(broken),
    }  # fmt: skip


@pytest.mark.parametrize("value", [b"\xff\xfe{", b"\x80"])
def test_what_is_no_text_is_base64_and_says_so(value: bytes) -> None:
    line = exported(value, key=value)
    assert (line["key_encoding"], line["value_encoding"], line["envelope"]) == ("base64", "base64", None)
    assert base64.b64decode(line["value"]) == base64.b64decode(line["key"]) == value
    assert exported(b"{", key=None)["key"] is None


@pytest.mark.parametrize("value", [b"{", b"[1]", b"5", b'"text"', b"null", b'{"a": NaN}', b"[" * 3000, b'{"a":' * 900])
def test_what_is_no_json_object_has_no_envelope(value: bytes) -> None:
    assert exported(value)["envelope"] is None


def test_what_is_nested_too_deeply_for_any_editor_is_still_taken_out() -> None:
    value = b'{"a":' * 500 + b"1" + b"}" * 500
    assert exported(value)["value"] == value.decode()


@given(st.binary(max_size=60))
def test_any_bytes_come_out_and_are_never_brought_back_as_something_else(value: bytes) -> None:
    line = line_of(letter(value))
    assert b"\n" not in line
    found = json.loads(line)
    decode = base64.b64decode if found["value_encoding"] == "base64" else str.encode
    assert decode(found["value"]) == value
    assert isinstance(mended(line), Refused), "it is as bad as it was"


def test_a_mended_envelope_goes_in_as_it_stands_under_the_key_of_its_guest() -> None:
    line = line_of(letter(GOOD.replace(b'"PLACED"', b'"LOST"').replace(b"5.1", b"12345678901.1050"), key=b"other"))
    made = brought(line.replace(b'"status":"LOST"', b'"status": "PAID"'))
    assert made.place == PLACE
    assert made.record.topic == "changelog.order"
    assert made.record.key == KEY
    assert made.record.value is not None
    assert b'"total":12345678901.1050' in made.record.value, "no digit is lost"
    assert b'"status": "PAID"' in made.record.value
    assert made.identity == Identity("changelog.order", KEY, "shop", "i-1")
    assert made.ref == "o-1"


def test_a_line_is_refused_with_the_reason_as_long_as_it_is_bad() -> None:
    line = exported(GOOD.replace(b'"PLACED"', b'"LOST"'))
    assert refused(line).startswith('still bad: schema: "LOST" is not one of')
    line["envelope"]["current"]["status"] = "PAID"
    brought(line)
    line["envelope"]["current"]["guestRef"] = ""
    assert "still bad" in refused(line)
    assert mended(json.dumps(line).encode())[0] == PLACE, "it is known which one it is"
    del line["envelope"]["current"]
    assert "names no guest" in refused(line)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": None}, "which dead letter"),
        ({"topic": "alert.x"}, "which dead letter"),
        ({"partition": "2"}, "which dead letter"),
        ({"offset": True}, "which dead letter"),
        ({"offset": 1.5}, "which dead letter"),
        ({"entity": "orders"}, "entity is 'orders'"),
        ({"entity": ["order"]}, "entity is"),
        ({"envelope": [1]}, "envelope is not a JSON object"),
        ({"envelope": "{}"}, "envelope is not a JSON object"),
        ({"envelope": {}}, "names no guest"),
        ({"envelope": None, "value": None}, "neither envelope nor value"),
        ({"envelope": None, "value": "{"}, "the value is not JSON"),
        ({"envelope": None, "value": "[1]"}, "names no guest"),
        ({"envelope": None, "value": "!", "value_encoding": "base64"}, "base64"),
        ({"envelope": None, "value_encoding": "latin-1"}, "neither envelope nor value"),
        ({"envelope": {"provenance": {"serviceName": "s", "identifier": "i"}, "current": 5}}, "names no guest"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    assert said in refused({**exported(b"{"), **change})


@pytest.mark.parametrize("line", [b"{", b"[]", b"5", b"null", b"\xff", b'{"topic": NaN}'])
def test_what_is_no_line_of_ours_is_refused(line: bytes) -> None:
    assert refused(line)


def test_where_there_is_no_envelope_the_value_is_what_was_mended() -> None:
    line = exported(GOOD[:-1])
    assert line["envelope"] is None
    assert brought({**line, "value": GOOD.decode()}).record.value == GOOD
    packed = base64.b64encode(GOOD).decode()
    assert brought({**line, "value": packed, "value_encoding": "base64"}).record.value == GOOD
    assert brought({**line, "envelope": json.loads(GOOD)}).identity.service == "shop"


@pytest.mark.parametrize(
    ("provenance", "service", "identifier"),
    [
        (None, "dead-letters", "changelog.order/2/17"),
        ("shop", "dead-letters", "changelog.order/2/17"),
        ({}, "dead-letters", "changelog.order/2/17"),
        ({"serviceName": "shop", "identifier": ""}, "shop", "changelog.order/2/17"),
        ({"serviceName": 5, "identifier": "i-1"}, "dead-letters", "i-1"),
        ({"serviceName": "shop", "identifier": "i-1", "apiVersion": "2"}, "shop", "i-1"),
    ],
)
def test_what_does_not_say_who_wrote_it_gets_an_identity_of_its_place(
    provenance: Any, service: str, identifier: str
) -> None:
    envelope = {**json.loads(GOOD), "provenance": provenance}
    if provenance is None:
        del envelope["provenance"]
    made = brought({**exported(b"{"), "envelope": envelope})
    assert (made.identity.service, made.identity.identifier) == (service, identifier)
    assert check("order", made.record.key, made.record.value or b"") == (None, service, identifier)
    assert brought({**exported(b"{"), "envelope": envelope}) == made, "the same each time"


def test_digits_stay_where_an_identity_is_added() -> None:
    text = GOOD.replace(b"5.1", b"12345678901.1050")
    line = json.dumps({**exported(b"{"), "envelope": None}).encode()
    made = brought(line.replace(b'"envelope": null', b'"envelope": ' + text.replace(b'"serviceName":"shop",', b"")))
    assert b'"total":12345678901.1050' in (made.record.value or b"")
    assert made.identity.service == "dead-letters"


def test_what_was_sent_to_the_wrong_topic_can_be_sent_to_the_right_one() -> None:
    line = exported(change(SAMPLES["session"]))
    assert "still bad" in refused(line)
    made = brought({**line, "entity": "session"})
    assert (made.record.topic, made.identity.topic, made.ref) == ("changelog.session", "changelog.session", "s-1")
    assert made.place == PLACE
