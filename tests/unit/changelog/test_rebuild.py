"""Records of raw objects in the order of the log, whatever a crash has left behind."""

from collections.abc import Callable, Iterator

import pytest

from changelog.archive.secor import ArchivedRecord, hour_in, hour_of, object_name, start_of
from changelog.rebuild import in_order

pytestmark = pytest.mark.unit

HOUR = 489_000


def records(*offsets: int) -> Callable[[], Iterator[ArchivedRecord]]:
    return lambda: (ArchivedRecord(offset, 0, None, str(offset).encode()) for offset in offsets)


@pytest.mark.parametrize(
    "objects",
    [
        [(0, records(0, 1, 2)), (3, records(3, 4))],
        [(3, records(3, 4)), (0, records(0, 1, 2))],
        [(0, records(0, 1, 2, 3)), (2, records(2, 3, 4))],  # uploaded, not committed, read again
        [(0, records(0, 2, 4)), (0, records(1, 3))],  # a clock that went back: two hours of one batch
        [(0, records()), (0, records(0, 1)), (2, records()), (2, records(2, 3, 4))],
        [(0, records(0, 1, 2, 3, 4)), (1, records(1, 2)), (4, records(4))],
    ],
)
def test_each_offset_comes_once_and_in_order(
    objects: list[tuple[int, Callable[[], Iterator[ArchivedRecord]]]],
) -> None:
    assert [record.offset for record in in_order(objects)] == [0, 1, 2, 3, 4]


def test_no_more_objects_are_open_than_overlap() -> None:
    opened = []

    def opens(number: int) -> Callable[[], Iterator[ArchivedRecord]]:
        def stream() -> Iterator[ArchivedRecord]:
            opened.append(number)
            yield from records(number, number + 1)()

        return stream

    reading = in_order((number, opens(number)) for number in range(0, 100, 2))
    assert [next(reading).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    assert opened == [0, 2, 4, 6] or opened == [0, 2, 4]


def test_a_name_says_where_its_records_begin_and_in_which_hour() -> None:
    name = object_name("raw", "changelog.order", 2, HOUR, 123)
    assert (start_of(name), hour_in(name)) == (123, HOUR)
    assert hour_of(HOUR * 3_600_000) == HOUR
    for ask in (start_of, hour_in):
        with pytest.raises(ValueError, match="no archive object"):
            ask("raw/changelog.order/_topic-id")
