"""A log that holds nothing but aborted records and their markers. The first test on a platform, while it is so."""

import pytest
from pyspark.sql import SparkSession

from changelog.positions import covers, from_json
from changelog.topics import acknowledged_offsets, end_offsets
from runtime.settings import Settings
from tests.services import assert_verified, batch, query, run, send_in_one, shop, transactional
from views.registry import view_names

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_what_was_aborted_is_passed_and_seen_by_nobody(platform: Settings, lake: SparkSession) -> None:
    producer = transactional(platform, "tests-aborted")
    for seed in (711, 712):
        send_in_one(producer, shop(seed, 300), commit=False)
    ends = end_offsets(platform)
    assert min(offset for parts in ends.values() for offset in parts.values()) > 2, "every partition has some"
    assert ends == acknowledged_offsets(platform), "no transaction is open"
    run("wait", "--timeout", "60")
    assert query(platform, "SELECT sum(records), max(end_offset) > 2 FROM ops.epochs") == [[0, True]]
    made = batch(lake, platform, serve=False)
    assert covers(from_json(made.vector), ends), "the boundary can pass them"
    for topic in platform.topics:
        rows = query(
            platform,
            "SELECT kafka_partition, kind, min(kafka_offset), max(last_offset), sum(last_offset - kafka_offset + 1) "
            f'FROM lake.archive."{topic.removeprefix("changelog.")}" GROUP BY 1, 2 ORDER BY 1',
        )
        assert rows == [[partition, "empty", 0, end - 1, end] for partition, end in sorted(ends[topic].items())]
    assert_verified(lake, platform)
    for view in view_names():
        assert query(platform, f"SELECT count(*) FROM serving.{view}") == [[0]]
