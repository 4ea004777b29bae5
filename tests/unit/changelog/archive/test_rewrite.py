"""A rewritten object has the same records at the same offsets and times, and nothing of the guest."""

import contextlib
import random
from collections.abc import Collection, Iterator
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

from changelog.archive.objects import NAMING, RawObject, _topic_partition
from changelog.archive.rewrite import Damaged, _replaced, rewrite, without
from changelog.archive.secor import ArchivedRecord, pack_key, read_object
from changelog.archive.sequencefile import Writer
from changelog.archive.store import ArchiveObject
from changelog.erased import ERASED_VALUE
from runtime.errors import ArchiveError, TransientError
from runtime.settings import Settings
from tests.unit.changelog.test_erased import erased, event

pytestmark = pytest.mark.unit

NAME = "raw/changelog.event/dt=2026-05-01/hr=10/1_0_00000000000000000003.deflate"
RECORDS: list[tuple[int, bytes | None, bytes]] = [
    (3, b"g1", event("g1")),
    (4, b"g2", event("g2")),
    (7, b"g1", b""),
    (8, b"g2", b'{"guestRef":"g1"'),
    (9, b"g2", b'{"guestRef":"g12"'),
    (10, None, b"{"),
]


def an_object() -> bytes:
    writer = Writer()
    for offset, key, value in RECORDS:
        writer.append(pack_key(offset, 1000 + offset, key), value)
    return writer.close()


def test_records_of_the_guest_lose_everything_but_their_place_and_time() -> None:
    made, number, whole = without(an_object(), NAME, "event", erased("g1"))
    assert whole
    found = list(read_object(made, NAME))
    assert number == 3
    assert [(record.offset, record.timestamp_ms) for record in found] == [(o, 1000 + o) for o, _, _ in RECORDS]
    for record, (offset, key, value) in zip(found, RECORDS, strict=True):
        gone = offset in (3, 7, 8)
        assert (record.key, record.value) == ((None, ERASED_VALUE) if gone else (key, value))


def test_a_second_time_and_of_somebody_else_it_stays_byte_for_byte() -> None:
    made, *_ = without(an_object(), NAME, "event", erased("g1"))
    assert without(made, NAME, "event", erased("g1")) == (made, 0, True)
    assert without(made, NAME, "event", erased("g3")) == (made, 0, True)


def nothing_is_damaged(key: str) -> None:
    raise AssertionError(f"{key} is whole")


class Store:
    """Holds one object, which somebody else replaces before it is."""

    def __init__(self, *versions: bytes) -> None:
        self.versions = list(versions)

    def read(self, _key: str) -> tuple[bytes, str]:
        return self.versions[0], str(len(self.versions))

    def replace(self, key: str, data: bytes, etag: str) -> str:
        if len(self.versions) > 1:
            self.versions.pop(0)
        if etag != str(len(self.versions)):
            raise TransientError(f"{key} changed")
        self.versions = [data]
        return "new"


def test_of_two_erasures_at_once_neither_undoes_the_other() -> None:
    other, *_ = without(an_object(), NAME, "event", erased("g2"))
    store, told = Store(an_object(), other), []
    number = _replaced(
        cast(Any, store), NAME, "event", erased("g1"), 0, lambda key, etag: told.append((key, etag)), nothing_is_damaged
    )
    assert (number, told) == (2, [(NAME, "new")])
    assert {record.key for record in read_object(store.versions[0], NAME)} == {None}


def test_what_a_damaged_object_held_is_put_beside_it_before_anything_takes_its_place() -> None:
    store, told = Store(b"SEQ"), list[str]()

    def refuse(_key: str) -> None:
        raise TransientError("Kafka is away")

    def replace(damaged: Damaged) -> None:
        _replaced(cast(Any, store), NAME, "event", erased("g1"), 9, lambda *_: told.append("replaced"), damaged)

    with pytest.raises(TransientError, match="Kafka is away"):
        replace(refuse)
    assert store.versions == [b"SEQ"]
    replace(told.append)
    assert told == [NAME, "replaced"]


def test_an_object_that_the_store_cannot_give_stays_and_is_told_of() -> None:
    class Rotten(Store):
        def read(self, _key: str) -> tuple[bytes, str]:
            raise ClientError({"Error": {"Code": "InternalError"}}, "GetObject")

        def look(self) -> None:
            told.append("look")

    told: list[str] = []
    store = cast(Any, Rotten(b"SEQ"))
    assert _replaced(store, NAME, "event", erased("g1"), 9, lambda *_: told.append("replaced"), told.append) == 0
    assert told == ["look", NAME]


def test_of_a_damaged_object_stays_what_can_be_read_where_the_rest_was_made_up_for() -> None:
    random.seed(7)  # what is compressed well is one block, and a block is lost whole
    writer = Writer()
    for offset in range(3, 9):
        value = random.randbytes(400_000)
        writer.append(pack_key(offset, 1000, b"g1" if offset == 4 else b"g2"), value)
    damaged = writer.close()[:-100]
    readable = [record.offset for record in _readable(damaged)]
    assert 4 in readable
    assert 8 not in readable
    end = readable[-1] + 1
    assert without(damaged, NAME, "event", erased("g1"), end) == (damaged, 0, False)  # nobody has made up for it yet
    made, number, whole = without(damaged, NAME, "event", erased("g1"), end + 1)
    assert not whole
    assert (number, [record.offset for record in read_object(made, NAME)]) == (1, readable)
    assert b"g1" not in {record.key for record in read_object(made, NAME)}
    nothing, *_ = without(b"SEQ", NAME, "event", erased("g1"), 9)
    assert list(read_object(nothing, NAME)) == []
    assert without(b"", NAME, "event", erased("g1"), 9) == (b"", 0, False)


def _readable(data: bytes) -> Iterator[ArchivedRecord]:
    with contextlib.suppress(ArchiveError):
        yield from read_object(data, NAME)


@pytest.mark.parametrize(("archived", "goes"), [(4, False), (9, False), (10, True)])
def test_a_damaged_object_stays_while_the_archive_stands_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch, archived: int, goes: bool
) -> None:
    def named(partition: int, offset: int) -> ArchiveObject:
        return ArchiveObject(NAME.replace("1_0_", f"1_{partition}_")[: -len("03.deflate")] + f"{offset:02d}.deflate",
                             "1", 1, partition)  # fmt: skip

    class Listed(Store):
        def __init__(self, _store: object) -> None:
            super().__init__(b"SEQ")

        def list_objects(self, topic: str) -> list[ArchiveObject]:
            return [named(0, 3), named(0, 10), named(1, 0)] if topic == "changelog.event" else []

    told: list[str] = []
    monkeypatch.setattr("changelog.archive.rewrite.ArchiveStore", Listed)

    def run(only: Collection[str] | None = None) -> None:
        ends = {"changelog.event": {0: archived}}
        rewrite(Settings(), erased("g1"), ends, lambda key, _etag: told.append(key), lambda _: None, only)

    run(only=[])
    assert told == []
    run()
    assert (NAME in told) is goes


@pytest.mark.parametrize("position", [0, 9, 100])
@pytest.mark.parametrize(("of", "names"), [("g1", True), ("g2", True), ("g3", False)])
def test_who_reads_an_object_is_told_that_an_erased_guest_is_in_it(position: int, of: str, names: bool) -> None:
    """Also where all of it lies before what is wanted; and no more when he is taken out."""

    class Archive:
        def __init__(self, data: bytes) -> None:
            self._data = data

        def get(self, _key: str, _etag: str) -> bytes:
            return self._data

    def naming(data: bytes) -> list[str]:
        item = RawObject("changelog.event", 0, NAME, "etag")
        batches = _topic_partition(cast(Any, Archive(data)), [item], position, erased(of))
        return [row["object"] for batch in batches for row in batch.to_pylist() if row["kind"] == NAMING]

    assert naming(an_object()) == ([NAME] if names else [])
    assert naming(without(an_object(), NAME, "event", erased(of))[0]) == []
