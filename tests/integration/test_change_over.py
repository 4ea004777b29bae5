"""Secor in place of our archiver, and back, in a running system: nothing is lost, nothing is counted twice.

Secor itself is not run here. What it does in the archive is: objects of generation 2 in its layout, from where it had
committed the last time (long before ours), so that records are stored again, one object replaced by a shorter one and
the rest in a further one, and the group's offsets committed behind what it stored."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from batch.backlog import has_work
from changelog.archive.guard import empty_objects
from changelog.archive.position import stored_offsets
from changelog.archive.secor import hour_of, object_name, pack_key
from changelog.archive.sequencefile import Writer
from changelog.archive.store import ArchiveStore, s3_client
from changelog.positions import covers
from changelog.topics import end_offsets
from infra import supervise
from runtime.settings import Settings
from tests.oracle import LogRecord
from tests.services import assert_exact, assert_verified, batch, feed, query, read_log, shop, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def without_archiver(platform: Settings) -> Iterator[Settings]:
    supervise.stop_services(platform, ["archiver"])
    yield platform
    supervise.start_service(platform, "archiver")


def store(settings: Settings, records: list[LogRecord], committed: int) -> None:
    """Store records of one topic-partition as Secor names and writes objects: all hours under the committed offset."""
    client = s3_client(settings.s3)
    hours: dict[int, Writer] = {}
    for record in records:
        writer = hours.setdefault(hour_of(record.time // 1000), Writer())
        writer.append(pack_key(record.offset, record.time // 1000, record.key), record.value or b"")
    for hour, writer in hours.items():
        name = object_name(settings.s3.archive_prefix, records[0].topic, records[0].partition, hour, committed)
        head, _, tail = name.rpartition("/1_")
        client.put_object(Bucket=settings.s3.archive_bucket, Key=f"{head}/2_{tail}", Body=writer.close())


def commit(settings: Settings, records: list[LogRecord]) -> None:
    consumer = Consumer({**settings.kafka.client(), "group.id": settings.archiver.group})
    place = TopicPartition(records[0].topic, records[0].partition, records[-1].offset + 1)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def test_secor_takes_over_and_hands_back(lake: SparkSession, platform: Settings, without_archiver: Settings) -> None:
    before = stored_offsets(platform)
    feed(platform, shop(9_001, 600))
    ends = end_offsets(platform)
    assert not covers(before, ends)
    by_partition: dict[tuple[str, int], list[LogRecord]] = {}
    for record in read_log(platform):
        by_partition.setdefault((record.topic, record.partition), []).append(record)
    for (topic, partition), log in by_partition.items():
        new = before.get(topic, {}).get(partition, 0)
        first = max(log[0].offset, new - 50)  # where Secor had been when ours took over
        again = [record for record in log if record.offset >= first]
        half = len(again) // 2
        store(platform, again, first)
        store(platform, again[:half] or again, first)  # after a crash: the same name, fewer records
        if half:
            store(platform, again[half:], again[half].offset)
        commit(platform, again)
    assert covers(stored_offsets(platform), ends)
    assert has_work(platform)
    batch(lake, platform)
    assert query(platform, "SELECT sum(speed_records) FROM serving.boundary WHERE view = 'traffic'") == [[0]]
    assert_exact(platform)

    supervise.start_service(platform, "archiver")
    feed(platform, shop(9_002, 300))
    ends = end_offsets(platform)
    until(lambda: covers(stored_offsets(platform), ends), 60, "ours goes on behind what Secor committed")
    batch(lake, platform)
    assert_exact(platform)
    assert_verified(lake, platform)


def test_the_guard_beside_secor_sees_an_empty_object(platform: Settings) -> None:
    elsewhere = platform.model_copy(update={"s3": platform.s3.model_copy(update={"archive_prefix": "guarded"})})
    store_, now = ArchiveStore(elsewhere.s3), datetime.now(UTC)
    name = object_name("guarded", "changelog.order", 1, hour_of(int(now.timestamp() * 1000)), 7)
    assert empty_objects(store_, platform.topics, now) == []
    store_.put_if_absent(name, b"something")
    assert empty_objects(store_, platform.topics, now) == []
    store_.put_if_absent(f"{name[:-9]}8.deflate", b"")
    assert [found.size for found in empty_objects(store_, platform.topics, now)] == [0]
