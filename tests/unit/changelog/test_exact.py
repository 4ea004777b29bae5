"""JSON on its way through: no digit comes or goes, and equal is what JSON calls equal."""

from decimal import Decimal

import pytest

from changelog.envelope import encode
from changelog.exact import canonical, parse, text_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "text",
    [
        b'{"total":12.10}',
        b'{"total":0.1000000000000000000001}',
        b"[9007199254740993,-9007199254740993,0]",
        b"123456789012345678901234567890123456789012345678901234567890",
        b'{"a":[],"b":{},"c":null,"d":true,"e":""}',
        '"Äpfel \U0001f34e \\u0000 \\" \\\\"'.encode(),
    ],
)
def test_what_is_parsed_and_written_again_is_the_same_text(text: bytes) -> None:
    assert text_of(parse(text)) == text


@pytest.mark.parametrize(("text", "number"), [(b"1.5e3", "1.5E+3"), (b"1e49", "1E+49"), (b"-0.0", "-0.0")])
def test_a_number_with_an_exponent_keeps_its_value_and_does_not_grow(text: bytes, number: str) -> None:
    assert parse(text) == Decimal(number)
    assert text_of(parse(text)) == number.encode()


def test_writers_of_envelopes_keep_every_digit_as_well() -> None:
    assert encode({"a": parse(b"12.10"), "b": parse(b"1" * 25)}) == b'{"a":12.10,"b":' + b"1" * 25 + b"}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"12.10", b"12.1"),
        (b"12.0", b"12"),
        (b"-0.0", b"0"),
        (b"1e3", b"1000"),
        (b"1e30", b"1000000000000000000000000000000"),
        (b"1e17", b"100000000000000000"),
        (b"1e18", b"1000000000000000000"),
        (b'{"a":1,"b":[2.50]}', b'{"b":[2.5],"a":1.0}'),
    ],
)
def test_equal_json_has_equal_text(one: bytes, other: bytes) -> None:
    assert canonical(parse(one)) == canonical(parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"true"),
        (b"0", b"false"),
        (b"1", b'"1"'),
        (b"null", b'""'),
        (b"[]", b"{}"),
        (b"[1,2]", b"[2,1]"),
        (b"0.1", b"0.10000000000000000000000000000000000000001"),
        (b"12345678901234567890123456789.1", b"12345678901234567890123456789.2"),
    ],
)
def test_other_json_has_another_text(one: bytes, other: bytes) -> None:
    assert canonical(parse(one)) != canonical(parse(other))


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        text_of({"a": {1}})
    with pytest.raises(ValueError, match="Expecting"):
        parse(b"{")
