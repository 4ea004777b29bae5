"""Which epochs the stream puts together, and when."""

import pytest

from speed.compaction import STEP, closed_epochs
from speed.table import BUCKET

pytestmark = pytest.mark.unit


def test_every_closed_epoch_is_put_together_and_the_running_one_never() -> None:
    covered: set[int] = set()
    for epoch in range(3 * BUCKET + 1):
        closed = closed_epochs(epoch)
        if closed:
            assert closed[1] == epoch, "the running epoch may be replayed"
            covered |= set(range(*closed))
        assert epoch - len(covered) <= STEP, "no more files of single epochs than a step"
    assert covered == set(range(3 * BUCKET))


def test_the_end_of_a_bucket_gives_its_predecessor_a_second_chance() -> None:
    assert closed_epochs(BUCKET) == (0, BUCKET)
    assert closed_epochs(3 * BUCKET) == (BUCKET, 3 * BUCKET)
    assert closed_epochs(BUCKET + STEP) == (BUCKET, BUCKET + STEP)
    assert [closed_epochs(epoch) for epoch in (0, 1, STEP - 1, BUCKET + 1)] == [None] * 4
