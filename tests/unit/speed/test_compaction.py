"""Which epochs the stream puts together, and when."""

import pytest

from speed.compaction import STEP, closed_epochs

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("bucket", [16, 64, 256])
def test_every_closed_epoch_is_put_together_and_the_running_one_never(bucket: int) -> None:
    covered: set[int] = set()
    for epoch in range(3 * bucket + 1):
        closed = closed_epochs(epoch, bucket)
        if closed:
            assert closed[1] == epoch, "the running epoch may be replayed"
            assert closed[0] // bucket == (epoch - 1) // bucket or epoch % bucket == 0, "files never span buckets"
            covered |= set(range(*closed))
        assert epoch - len(covered) < STEP, "no more files of single epochs than a step"
    assert covered == set(range(3 * bucket))


def test_a_query_opens_few_files_of_each_size() -> None:
    files: list[int] = []  # epochs in each, oldest first
    for epoch in range(2 * 256 + 1):
        closed = closed_epochs(epoch, 256)
        if closed:
            while files and sum(files) > closed[0]:
                files.pop()
            files.append(closed[1] - sum(files))
        files.append(1)
        assert all(files.count(size) <= STEP for size in (1, 4, 16, 64))
    assert files == [512, 1]


def test_the_end_of_a_bucket_gives_its_predecessor_a_second_chance() -> None:
    assert closed_epochs(256, 256) == (0, 256)
    assert closed_epochs(3 * 256, 256) == (256, 3 * 256)
    assert [closed_epochs(256 + step, 256) for step in (4, 16, 64)] == [(256, 256 + step) for step in (4, 16, 64)]
    assert [closed_epochs(epoch, 256) for epoch in (0, 1, STEP - 1, 257)] == [None] * 4
