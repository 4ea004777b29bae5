"""Who is erased is told by a keyed hash, in every form in which a ref can stand; and nobody else is."""

import pickle

import pyarrow as pa
import pytest

from changelog.classify import BAD, CHANGE, ERASED, RECORD, TOMBSTONE, classify_batch
from changelog.envelope import encode, envelope
from changelog.erased import ERASED_VALUE, NOBODY, Erased, digest, pattern

pytestmark = pytest.mark.unit

SECRET = b"secret"


def erased(*refs: str) -> Erased:
    """A list of these guests."""
    return Erased(SECRET, frozenset(digest(SECRET, ref.encode()) for ref in refs), refs, len(refs))


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
        (b"g12", b"g1 was here", ERASED),
        (b"g12", b'{"guestRef": "g12", "cut', BAD),
        (b"g12", ERASED_VALUE, BAD),
    ],
)
def test_a_record_is_erased_by_its_key_or_if_it_is_bad_and_names_the_guest(
    key: bytes | None, value: bytes | None, kind: str
) -> None:
    found = classified(key, value, erased("g1"))
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


@pytest.mark.parametrize("text", [b'{"a":"g1"}', b"g1", b"x=g1;", b"\0g1\0", "né g1 é".encode()])
def test_a_value_is_found_where_it_stands_by_itself(text: bytes) -> None:
    assert pattern(("g1", "other")).search(text)


@pytest.mark.parametrize("text", [b"g12", b"xg1", b"g1-2", b"g_1", b""])
def test_a_value_is_not_found_in_a_longer_one(text: bytes) -> None:
    assert pattern(("g1",)).search(text) is None


def test_what_json_escapes_is_found_as_well() -> None:
    assert pattern(('say "hi"',)).search(rb'{"ref":"say \"hi\""}')
    assert pattern(("Zoë",)).search(rb'{"ref":"Zo\u00eb"}')
    assert pattern(()).search(b"anything") is None
