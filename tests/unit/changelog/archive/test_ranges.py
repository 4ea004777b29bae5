"""Offsets as ranges: the same set, whatever the order in which offsets come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch.holes import NEAR, find, lost, overlapping, read_together
from changelog.archive.ranges import Hole, Ranges, gaps

pytestmark = pytest.mark.unit

OFFSETS = st.lists(st.integers(0, 40), max_size=60)


@given(OFFSETS)
def test_an_offset_is_new_once_and_ranges_are_the_set_without_gaps(offsets: list[int]) -> None:
    ranges, seen = Ranges(), set[int]()
    for offset in offsets:
        assert ranges.add(offset) == (offset not in seen)
        seen.add(offset)
        assert {o for first, last in ranges.ranges for o in range(first, last + 1)} == seen
        assert all(after[0] > before[1] + 1 for before, after in zip(ranges.ranges, ranges.ranges[1:], strict=False))


@given(OFFSETS, st.integers(0, 45))
def test_gaps_and_ranges_together_are_everything_up_to_the_end(offsets: list[int], start: int) -> None:
    ranges = Ranges()
    for offset in offsets:
        ranges.add(offset)
    missing = {o for first, last in gaps(reversed(ranges.ranges), start) for o in range(first, last + 1)}
    assert missing == set(range(start, max(offsets, default=-1) + 1)) - set(offsets)


def test_holes_are_counted_from_the_archived_position_of_their_own_partition() -> None:
    stretches = {("t", 0): [(5, 9), (12, 20)], ("t", 1): [(3, 4)]}
    assert find(stretches, {"t": {0: 4, 1: 3}}) == [Hole("t", 0, 4, 4), Hole("t", 0, 10, 11)]


def test_lost_is_what_lies_before_the_beginning_of_the_log() -> None:
    holes = [Hole("t", 0, 4, 9), Hole("t", 1, 7, 8)]
    assert lost(holes, {"t": {0: 6, 1: 7}}) == [Hole("t", 0, 4, 5)]


def test_holes_that_are_near_each_other_are_read_in_one_go() -> None:
    """A log with transactions has a hole behind each: a read for each would be as many as there are transactions."""
    near = [Hole("t", 0, first, first) for first in (3, 9, 9 + NEAR)]
    far, elsewhere = Hole("t", 0, 10 + 2 * NEAR, 11 + 2 * NEAR), Hole("t", 1, 10, 10)
    assert read_together([elsewhere, far, *reversed(near)]) == [near, [far], [elsewhere]]
    assert read_together([]) == []


@given(OFFSETS, st.integers(0, 45), st.integers(0, 5))
def test_holes_that_share_an_offset_are_found(offsets: list[int], first: int, length: int) -> None:
    ranges = Ranges()
    for offset in offsets:
        ranges.add(offset)
    holes = [Hole("t", 0, *stretch) for stretch in ranges.ranges]
    asked = Hole("t", 0, first, first + length)
    shared = [hole for hole in holes if hole.first <= asked.last and hole.last >= asked.first]
    assert overlapping(holes, asked) == shared
