"""Sets of offsets as ranges: what is there without a gap costs one entry."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Self

EMPTY = "empty"
"""Kind of a row of ``archive.<entity>`` that stands for a range of offsets without records (transaction markers), or
one accepted as lost."""


class Hole(NamedTuple):
    """Offsets ``first`` … ``last`` (both included) of a topic-partition."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """``changelog.order/3/100-105`` → Hole. Raises ValueError."""
        topic, partition, offsets = text.split("/")
        first, last = offsets.split("-")
        return cls(topic, int(partition), int(first), int(last))


class Ranges:
    """A growing set of offsets. ``ranges``: (first, last) of each gapless stretch, ascending, apart by at least one."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._at = 0

    def add(self, offset: int) -> bool:
        """Add an offset. Returns whether it is new."""
        ranges = self.ranges
        at = self._at  # records come in order, so the range that grew last is nearly always the right one
        if not (ranges and ranges[at][0] <= offset and (at + 1 == len(ranges) or offset < ranges[at + 1][0])):
            at = bisect_right(ranges, offset, key=lambda r: r[0]) - 1
        if at >= 0 and offset <= ranges[at][1]:
            self._at = at
            return False
        joins_before = at >= 0 and ranges[at][1] == offset - 1
        joins_after = at + 1 < len(ranges) and ranges[at + 1][0] == offset + 1
        if joins_before and joins_after:
            ranges[at : at + 2] = [(ranges[at][0], ranges[at + 1][1])]
        elif joins_before:
            ranges[at] = (ranges[at][0], offset)
        elif joins_after:
            at += 1
            ranges[at] = (offset, ranges[at][1])
        else:
            at += 1
            ranges.insert(at, (offset, offset))
        self._at = at
        return True


def gaps(ranges: Iterable[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """(first, last) of what ``ranges``, in any order, leave out between ``start`` and their end, ascending."""
    found = []
    for first, last in sorted(ranges):
        if first > start:
            found.append((start, first - 1))
        start = max(start, last + 1)
    return found
