"""Kafka lets go of records. The last test on a platform: plain Python has no whole log to fold afterwards."""

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from batch.plan import Plan
from changelog.topics import admin, start_offsets
from runtime.settings import Settings
from tests.services import assert_verified, batch, query, run, served

pytestmark = pytest.mark.integration


def test_what_kafka_has_let_go_of_is_recomputed_from_the_archive_and_verified(
    platform: Settings, lake: SparkSession
) -> None:
    run("wait")
    before = served(platform)
    batch(lake, platform)
    archived = dict(query(platform, "SELECT topic || '/' || cast(kafka_partition AS varchar), kafka_offset "
                                    "FROM ops.public.archived"))  # fmt: skip
    places = [
        TopicPartition(topic, partition, archived.get(f"{topic}/{partition}", 0))
        for topic in platform.topics
        for partition in range(platform.kafka.partitions)
    ]
    client = admin(platform)
    for future in client.delete_records(places).values():
        future.result(30)
    assert sum(start for parts in start_offsets(platform).values() for start in parts.values()) > 1000
    batch(lake, platform, Plan(full=True))
    assert served(platform).difference(before) == ""
    assert_verified(lake, platform)
