"""Who is erased is told by a keyed hash, in every form in which a ref can stand; and nobody else is."""

import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from changelog.classify import BAD, CHANGE, ERASED, RECORD, TOMBSTONE, classify_batch
from changelog.envelope import encode, envelope
from changelog.erased import ERASED_VALUE, NOBODY, Erased, digest, forms, guests_in, is_weak, names_of, pattern

pytestmark = pytest.mark.unit

SECRET = b"secret"


def erased(*refs: str, emails: tuple[str, ...] = ()) -> Erased:
    """A list of these guests, and of e-mail addresses of theirs."""
    names = names_of(SECRET, [*refs, *emails])
    return Erased(
        SECRET, frozenset(digest(SECRET, ref.encode()) for ref in refs), refs, len(refs),
        frozenset(map(bytes.fromhex, names)), tuple(sorted(set(names.values()))),
    )  # fmt: skip


def event(guest: str) -> bytes:
    current = {
        "ref": "e1", "guestRef": guest, "type": "VIEW", "channel": "WEB", "createdAt": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip
    return encode(envelope("test", "e1", current))


def classified(key: bytes | None, value: bytes | None, who: Erased) -> dict[str, object]:
    row = {"topic": "changelog.event", "kafka_partition": 0, "kafka_offset": 7, "key": key, "value": value}
    (found,) = classify_batch(pa.RecordBatch.from_pylist([row], schema=RECORD), who).to_pylist()
    return dict(found)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (b"g1", event("g1"), ERASED),
        (b"g1", b"{", ERASED),
        (b"g1", None, ERASED),
        (None, ERASED_VALUE, ERASED),
        (b"g12", event("g12"), CHANGE),
        (b"g12", None, TOMBSTONE),
        (b"g12", event("g1"), ERASED),  # bad, and it names the guest
        (b"g12", b'{"guestRef": "g1", "cut', ERASED),
        (b"g12", b'{"guestRef": g1, "cut', ERASED),
        (b"g12", b'{"guestRef": "\\u00671", "cut', ERASED),
        (b"g12", b'{"sku": "g1", "cut', BAD),  # so short that others mean something else by it
        (b"g12", b'{"ref": "g1", "cut', BAD),  # an event's
        (b"g12", b"g1 was here", BAD),
        (b"g12", b"guest-1 was here", ERASED),
        (b"g12", b"guest-12 was here", BAD),
        (b"guest-1/cart", b"{", ERASED),
        (None, b'{"email": "ann@x.org", "cut', ERASED),
        (None, b'{"email": "jo.ann@x.org", "cut', BAD),
        (None, b'{"email": "ann@x.org.uk", "cut', BAD),
        (b"g12", b'{"guestRef": "g12", "cut', BAD),
        (b"g12", ERASED_VALUE, BAD),
    ],
)
def test_a_record_is_erased_by_its_key_or_if_it_is_bad_and_names_the_guest(
    key: bytes | None, value: bytes | None, kind: str
) -> None:
    found = classified(key, value, erased("g1", "guest-1", emails=("ann@x.org",)))
    assert found["kind"] == kind
    if kind == ERASED:
        assert [found[name] for name in ("key", "value", "reason", "service_name", "identifier")] == [None] * 5
        assert found["kafka_offset"] == 7


def test_where_nobody_is_erased_nothing_changes_but_what_was_rewritten() -> None:
    assert classified(b"g1", event("g1"), NOBODY)["kind"] == CHANGE
    assert classified(None, ERASED_VALUE, NOBODY)["kind"] == ERASED


def test_the_list_says_nobody_without_its_secret_and_travels_to_workers() -> None:
    found = erased("g1", "Zoë/7")
    there = pickle.loads(pickle.dumps(found))
    assert there == found
    assert there.has("Zoë/7")
    assert there.has(b"g1")
    assert not there.has("g2")
    assert not there.has(None)
    assert not Erased(b"other", found.digests).has("g1")
    assert b"g1" not in b"".join(found.digests)


@pytest.mark.parametrize(
    "text", [b'{"a":"g-1000"}', b"g-1000", b"x=g-1000;", b"\0g-1000\0", b"of g-1000.", b"/g-1000/"]
)
def test_a_value_is_found_where_it_stands_by_itself(text: bytes) -> None:
    assert pattern((b"g-1000", b"other")).search(text)


@pytest.mark.parametrize("text", [b"g-10002", b"xg-1000", b"g-1000-2", b"g_g-1000", b"g-1000@x.org", b"eu.g-1000", b""])
def test_a_value_is_not_found_in_a_longer_one(text: bytes) -> None:
    assert pattern((b"g-1000",)).search(text) is None
    assert pattern(()).search(text) is None


@pytest.mark.parametrize("value", ["1", "17850", "g1", "536365", "n/a", 'say "hi"', "-g-1000"])
def test_a_number_or_what_is_short_is_weak(value: str) -> None:
    assert is_weak(value)
    assert names_of(SECRET, [value]) == {}


def test_a_weak_ref_is_told_where_a_guests_ref_is_expected() -> None:
    who = erased("17850")
    assert who.is_named_in("order", b'{"guestRef":"17850","cut')
    assert who.is_named_in("order", b'{"guestRef": 17850, "cut')
    assert who.is_named_in("guest", b'{"ref":"17850","cut')
    assert who.is_named_in("order", rb'{"payload":"{\"guest\u0052ef\":\"178\u00350\"}"')
    for said in (b'{"ref":"17850","guestRef":"2"', b'{"sku":"17850"', b'{"total":17850', b"17850"):
        assert not who.is_named_in("order", said)
    assert next(guests_in("order", b'{"guestRef":"say \\"hi\\""}')) == b'say "hi"'


SPELLINGS = (
    lambda text: json.dumps(text),
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: '"' + "".join(f"\\u{unit:04X}" for unit in _utf16(text)) + '"',
    lambda text: json.dumps(text).replace("/", "\\/"),
    lambda text: json.dumps(json.dumps({"guestRef": text})),
    lambda text: f" {text} ",
    lambda text: f'"\\n{text}\\t"',
)


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


REFS = st.text(st.sampled_from('ab1./-_@+ "ëé😀'), min_size=6, max_size=9).filter(
    lambda text: not is_weak(text) and text == text.strip()
)
AROUND = st.text(st.sampled_from('ab1.-_@+: "{}ë'), max_size=3)


@pytest.mark.parametrize("spelling", range(len(SPELLINGS)))
@given(ref=REFS, before=AROUND, after=AROUND)
@example(ref="Zoë/17", before="", after="")
@example(ref='say "hi" to', before="{", after="}")
@example(ref="john.smith", before="", after="")
def test_who_has_the_hashes_finds_what_finds_who_has_the_values(
    spelling: int, ref: str, before: str, after: str
) -> None:
    value = (before + SPELLINGS[spelling](ref) + after).encode()
    in_the_clear = any(pattern((ref.encode(),)).search(form) for form in forms(value))
    assert erased(ref).is_named_in("order", value) is in_the_clear
    if not (before or after):
        assert in_the_clear
    assert not erased("someone-else").is_named_in("order", value)
