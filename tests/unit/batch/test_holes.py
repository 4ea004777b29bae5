"""Which offsets are missing, by what objects hold and by what they should hold."""

import pytest

from batch.holes import ends_of, find
from changelog.archive.ranges import Hole

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
