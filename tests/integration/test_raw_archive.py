"""Records into objects, on the real store: none is replaced, nothing is put twice, what is damaged loses nothing."""

import pytest

from batch.restore import restore
from changelog.archive.secor import ArchivedRecord, hour_of, object_name, read_object
from changelog.archive.store import ArchiveStore, s3_client
from changelog.archive.write import store
from changelog.erased import NOBODY
from runtime.settings import Settings

pytestmark = pytest.mark.integration

TOPIC, PARTITION, MOMENT = "changelog.order", 2, 1_790_000_000_000
HOUR = hour_of(MOMENT)


def records(first: int, last: int, moment: int = MOMENT) -> list[ArchivedRecord]:
    return [
        ArchivedRecord(offset, moment, b"guest", b"%d " % offset + bytes(10_000)) for offset in range(first, last + 1)
    ]


@pytest.fixture
def archive(platform: Settings, request: pytest.FixtureRequest) -> ArchiveStore:
    """An archive with nothing in it."""
    prefix = f"tests-{request.node.name}"
    return ArchiveStore(platform.s3.model_copy(update={"archive_prefix": prefix}))


def name(archive: ArchiveStore, start: int, generation: int = 1, hour: int = HOUR) -> str:
    return object_name(archive.prefix, TOPIC, PARTITION, hour, start, generation)


def held(archive: ArchiveStore) -> dict[str, list[ArchivedRecord]]:
    return {item.key: list(read_object(archive.get(item.key), item.key)) for item in archive.list_objects(TOPIC)}


def cut(settings: Settings, archive: ArchiveStore, key: str, size: int) -> None:
    s3_client(settings.s3).put_object(Bucket=settings.s3.archive_bucket, Key=key, Body=archive.get(key)[:size])


def test_what_is_there_is_not_put_again_and_what_is_not_goes_behind_it(archive: ArchiveStore) -> None:
    assert store(archive, TOPIC, PARTITION, HOUR, 5, records(7, 9))
    assert store(archive, TOPIC, PARTITION, HOUR, 5, records(7, 9)) is None
    assert store(archive, TOPIC, PARTITION, HOUR, 5, [*records(6, 6), *records(8, 12)])
    assert store(archive, TOPIC, PARTITION, HOUR, 5, records(6, 12)) is None
    assert held(archive) == {
        name(archive, 5): records(7, 9),
        name(archive, 6): [*records(6, 6), *records(10, 12)],
    }


@pytest.mark.parametrize("size", [0, 40, 200])
def test_all_goes_beside_an_object_that_is_damaged_also_at_the_very_beginning(
    platform: Settings, archive: ArchiveStore, size: int
) -> None:
    for generation in (1, 3):  # Secor's is 2
        store(archive, TOPIC, PARTITION, HOUR, 0, records(0, 50))
        cut(platform, archive, name(archive, 0, generation), size)
    assert store(archive, TOPIC, PARTITION, HOUR, 0, records(0, 50))
    assert store(archive, TOPIC, PARTITION, HOUR, 0, records(0, 50)) is None
    assert list(read_object(archive.get(name(archive, 0, 4)), "third")) == records(0, 50)


def test_records_go_into_an_object_for_each_hour(archive: ArchiveStore) -> None:
    later = records(2, 4, MOMENT + 3_600_000)
    restore(archive, TOPIC, PARTITION, [*records(0, 1), *later, *records(5, 6)], NOBODY)
    assert held(archive) == {
        name(archive, 0): [*records(0, 1), *records(5, 6)],
        name(archive, 2, hour=HOUR + 1): later,
    }
