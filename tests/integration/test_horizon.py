"""Kafka lets go of records. The last tests on a platform: plain Python has no whole log to fold afterwards."""

import pytest
from pyspark.sql import SparkSession

from batch.plan import Plan
from batch.run import wait_for_archiver
from changelog.positions import covers, from_json
from changelog.topics import end_offsets, start_offsets
from runtime.settings import Settings
from tests.services import assert_verified, batch, let_go, query, run, send_in_one, served, shop, transactional

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_what_kafka_has_let_go_of_is_recomputed_from_the_archive_and_verified(
    platform: Settings, lake: SparkSession
) -> None:
    run("wait")
    before = served(platform)
    batch(lake, platform)
    archived = dict(query(platform, "SELECT topic || '/' || cast(kafka_partition AS varchar), kafka_offset "
                                    "FROM ops.public.archived"))  # fmt: skip
    partitions = range(platform.kafka.partitions)
    let_go(platform, {topic: {p: archived.get(f"{topic}/{p}", 0) for p in partitions} for topic in platform.topics})
    assert sum(start for parts in start_offsets(platform).values() for start in parts.values()) > 1000
    batch(lake, platform, Plan(full=True))
    assert served(platform).difference(before) == ""
    assert_verified(lake, platform)


def test_markers_that_kafka_has_let_go_of_before_they_were_ingested_are_no_loss(
    platform: Settings, lake: SparkSession
) -> None:
    producer, records, never = transactional(platform, "tests-horizon"), shop(731, 400), shop(732, 100)
    for number in range(20):
        send_in_one(producer, never[number * 5 : number * 5 + 5], commit=False)
        send_in_one(producer, records[number * 20 : number * 20 + 20])
    ends = end_offsets(platform)
    run("wait")
    assert wait_for_archiver(platform, ends, 90)
    let_go(platform, ends)
    assert start_offsets(platform) == ends
    made = batch(lake, platform)
    assert covers(from_json(made.vector), ends)
    assert_verified(lake, platform)
