"""What the archiver holds of a partition: every offset from where it began is a record or known to be none."""

import pytest

from changelog.archive.archiver import HELD_BYTES, RECORD_BYTES, Batch, due
from runtime.settings import Archiver

pytestmark = pytest.mark.unit

HOUR = 3_600_000


def held(*offsets: int, since: int = 0) -> Batch:
    """A batch of the records with these offsets, two of each hour."""
    batch = Batch(since, since, 0.0)
    for number, offset in enumerate(offsets):
        batch.add(offset, number // 2 * HOUR, b"key", b"value")
    return batch


def test_records_are_held_by_hour_and_named_by_the_first() -> None:
    batch = held(7, 8, 9, since=7)
    assert {hour: [record[0] for record in records] for hour, records in batch.hours.items()} == {0: [7, 8], 1: [9]}
    assert (batch.since, batch.start, batch.next, batch.empty) == (7, 7, 10, [])


def test_offsets_without_records_are_known_before_between_and_after_records() -> None:
    batch = held(3, 4, 8, since=1)
    batch.reach(9)
    batch.reach(12)
    assert (batch.start, batch.next, batch.empty) == (3, 12, [(1, 2), (5, 7), (9, 11)])


def test_a_partition_may_hold_nothing_but_offsets_without_records() -> None:
    batch = held(since=5)
    batch.reach(5)
    assert (batch.next, batch.empty) == (5, [])
    batch.reach(9)
    assert (batch.hours, batch.next, batch.empty) == ({}, 9, [(5, 8)])


def test_a_batch_is_stored_when_it_is_large_or_old() -> None:
    limits = Archiver(max_bytes=100, max_age_seconds=10)
    batches = {("a", 0): Batch(0, 5, 0.0), ("a", 1): Batch(0, 5, 8.0), ("b", 0): Batch(0, 5, 8.0, size=100)}
    assert due(batches, limits, 9.0) == [("b", 0)]
    assert due(batches, limits, 10.0) == [("a", 0), ("b", 0)]


def test_all_are_stored_where_together_they_fill_the_memory() -> None:
    few = HELD_BYTES // RECORD_BYTES // 2
    batches = {("a", number): Batch(7, 7 + few, 0.0) for number in range(2)}
    assert due(batches, Archiver(), 1.0) == []
    batches["a", 1].size = RECORD_BYTES * 3
    assert due(batches, Archiver(), 1.0) == [("a", 0), ("a", 1)]
