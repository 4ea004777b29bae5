"""Where an epoch starts and ends, as Spark wrote it down."""

from pathlib import Path

import pytest

from runtime.errors import LostStateError
from speed.positions import epoch_end, epoch_range, last_epoch

pytestmark = pytest.mark.unit

TIMES = '{"batchWatermarkMs":1000,"batchTimestampMs":5000,"conf":{}}'


def note(checkpoint: Path, epoch: int, *lines: str) -> None:
    path = checkpoint / "offsets" / str(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def test_an_epoch_ends_where_spark_says_and_starts_where_the_one_before_ended(tmp_path: Path) -> None:
    note(tmp_path, 0, "v1", TIMES, '{"t":{"0":7,"1":0}}')
    note(tmp_path, 1, "v1", TIMES, '{"t":{"0":9,"1":0}}')
    begin = {"t": {0: 2, 1: 0}}
    assert epoch_range(tmp_path, 0, begin) == (begin, {"t": {0: 7, 1: 0}})
    assert epoch_range(tmp_path, 1, begin) == ({"t": {0: 7, 1: 0}}, {"t": {0: 9, 1: 0}})


@pytest.mark.parametrize(
    "lines",
    [("v2", TIMES, "{}"), ("v1", TIMES), ("v1", TIMES, "{}", "{}"), ("v1", TIMES, "not json"), ("v1", TIMES, "[]")],
)
def test_another_form_of_the_log_is_state_that_is_lost(tmp_path: Path, lines: tuple[str, ...]) -> None:
    note(tmp_path, 3, *lines)
    with pytest.raises(LostStateError, match="epoch 3 cannot be read"):
        epoch_end(tmp_path, 3)


def test_an_epoch_that_is_not_noted_is_state_that_is_lost(tmp_path: Path) -> None:
    with pytest.raises(LostStateError, match="epoch 4"):
        epoch_end(tmp_path, 4)


def test_the_last_epoch_is_the_newest_that_spark_noted_as_done(tmp_path: Path) -> None:
    begin = {"t": {0: 2}}
    assert last_epoch(tmp_path, begin) == (None, begin)
    for epoch in (9, 10, 11):
        note(tmp_path, epoch, "v1", TIMES, f'{{"t":{{"0":{epoch}}}}}')
    (tmp_path / "commits").mkdir()
    for epoch in (9, 10):
        (tmp_path / "commits" / str(epoch)).touch()
    assert last_epoch(tmp_path, begin) == (10, {"t": {0: 10}})
