"""Which offsets are missing, by what objects hold and by what they should hold."""

import pytest

from batch.holes import ends_of, find, record_of
from changelog.archive.ranges import Hole
from changelog.reader import Entry

pytestmark = pytest.mark.unit

POSITION = {"t": {0: 5, 1: 0, 2: 7}}


def test_offsets_between_stretches_are_missing() -> None:
    found = {("t", 0): [(5, 6), (9, 10)], ("t", 1): [(0, 3)]}
    assert find(found, POSITION) == [Hole("t", 0, 7, 8)]
    assert ends_of(found, POSITION) == {"t": {0: 11, 1: 4, 2: 7}}


def test_where_records_should_end_shows_that_the_last_ones_are_missing() -> None:
    found = {("t", 0): [(5, 6), (9, 8)], ("t", 2): [(12, 11)]}
    assert find(found, POSITION) == [Hole("t", 0, 7, 8), Hole("t", 2, 7, 11)]
    assert ends_of(found, POSITION) == {"t": {0: 9, 1: 0, 2: 12}}
    assert find({("t", 0): [(5, 8), (9, 8)]}, POSITION) == []


@pytest.mark.parametrize(
    ("key", "value", "found"), [(b"k", b"v", (b"k", b"v")), (b"k", b"", (b"k", None)), (b"", None, (None, None))]
)
def test_what_comes_from_kafka_is_what_an_object_would_have_held(
    key: bytes, value: bytes | None, found: tuple[bytes | None, bytes | None]
) -> None:
    record = record_of(Entry("changelog.order", 2, 7, 1_000, key, value, {}))
    assert (record["key"], record["value"]) == found
    assert (record["topic"], record["kafka_partition"], record["kafka_offset"]) == ("changelog.order", 2, 7)
    assert record["append_time"] == 1_000_000
