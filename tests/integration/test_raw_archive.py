"""Records into objects, on the real store: none is replaced, nothing is put twice, what is damaged loses nothing."""

from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from batch.backlog import archived_vector
from batch.ingest import ingest
from batch.restore import keeping, restore
from batch.run import wait_for_archiver
from changelog.archive.rewrite import rewrite
from changelog.archive.secor import ArchivedRecord, hour_of, object_name, read_object, start_of
from changelog.archive.store import ArchiveStore, s3_client
from changelog.archive.write import store
from changelog.erased import NOBODY, Erased, digest
from changelog.topics import end_offsets
from runtime.errors import ArchiveError
from runtime.ops import connect
from runtime.settings import Settings
from tests.services import feed, run, shop

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


def test_another_object_begins_wherever_the_hour_changes(archive: ArchiveStore) -> None:
    """So it is known what one held that is lost: up to where the next begins."""
    later = records(2, 4, MOMENT + 3_600_000)
    restore(archive, TOPIC, PARTITION, [*records(0, 1), *later, *records(5, 6)], NOBODY)
    assert held(archive) == {
        name(archive, 0): records(0, 1),
        name(archive, 2, hour=HOUR + 1): later,
        name(archive, 5): records(5, 6),
    }


def everything(settings: Settings) -> dict[str, list[tuple[str, ArchivedRecord]]]:
    """All objects of the archive: name → (topic, record) of each that can be read."""
    store = ArchiveStore(settings.s3)
    found = {}
    for topic in settings.topics:
        for item in store.list_objects(topic):
            with suppress(ArchiveError):
                found[item.key] = [(topic, record) for record in read_object(store.get(item.key), item.key)]
    return found


@pytest.fixture
def newest(platform: Settings, lake: SparkSession) -> dict[str, list[tuple[str, ArchivedRecord]]]:
    """The newest object of each topic, whole and ingested."""
    feed(platform, shop(811, 200))
    run("wait")
    assert wait_for_archiver(platform, end_offsets(platform), 90)
    ingest(lake, platform)
    there = everything(platform)
    keys = {topic: max((start_of(key), key) for key in there if f"/{topic}/" in key)[1] for topic in platform.topics}
    return {key: there[key] for key in keys.values()}


def records_of(objects: dict[str, list[tuple[str, ArchivedRecord]]]) -> set[tuple[str, ArchivedRecord]]:
    return {record for records in objects.values() for record in records}


def test_objects_that_are_gone_after_they_were_ingested_are_stored_anew(
    platform: Settings, lake: SparkSession, newest: dict[str, list[tuple[str, ArchivedRecord]]]
) -> None:
    for key in newest:
        s3_client(platform.s3).delete_object(Bucket=platform.s3.archive_bucket, Key=key)
    report = ingest(lake, platform)
    assert (report.alarms, report.lost, report.mended) == ([], [], 0)
    there = everything(platform)
    assert records_of(newest) <= records_of(there)
    assert ingest(lake, platform).alarms == []
    assert everything(platform).keys() == there.keys()


def test_one_that_is_gone_is_not_missed_while_others_hold_its_records(
    platform: Settings, lake: SparkSession, newest: dict[str, list[tuple[str, ArchivedRecord]]]
) -> None:
    """As when somebody clears away what an archiver left twice."""
    there, client = everything(platform), s3_client(platform.s3)
    twice = {key: key.replace(f"{start_of(key):020d}", f"{start_of(key) - 1:020d}") for key in newest}
    doubles = [double for double in twice.values() if double not in there]
    assert doubles
    for key, double in twice.items():
        if double in doubles:
            client.put_object(Bucket=platform.s3.archive_bucket, Key=double, Body=ArchiveStore(platform.s3).get(key))
    assert ingest(lake, platform).alarms == []
    for double in doubles:
        client.delete_object(Bucket=platform.s3.archive_bucket, Key=double)
    assert ingest(lake, platform).alarms == []
    assert everything(platform).keys() == there.keys()


def test_a_rewrite_puts_beside_a_damaged_object_what_it_held(
    platform: Settings, lake: SparkSession, newest: dict[str, list[tuple[str, ArchivedRecord]]]
) -> None:
    """Before what can be read of it takes its place."""
    for key in newest:
        cut(platform, ArchiveStore(platform.s3), key, 100)
    nobody = Erased(b"secret", frozenset({digest(b"secret", b"nobody")}))
    with connect(platform) as ops:
        rewrite(platform, nobody, archived_vector(ops), *keeping(platform, ops))
    there = everything(platform)
    assert newest.keys() <= there.keys()
    assert all(len(there[key]) < len(newest[key]) for key in newest)
    assert records_of(newest) <= records_of(there)
    assert ingest(lake, platform).alarms == []
