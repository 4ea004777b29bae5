"""The check of the archive on real tables: it passes what ingest wrote, finds what is wrong, and its remedy helps."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batch.plan import Plan
from batch.quality import check_archive
from runtime.errors import QualityError
from runtime.settings import Settings
from tests.services import assert_exact, assert_verified, batch, feed, query, run, shop

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_offsets_that_are_missing_are_named_and_the_remedy_brings_them_back(
    platform: Settings, lake: SparkSession
) -> None:
    def asked(sql: str) -> Sequence[Sequence[Any]]:
        return query(platform, sql)

    feed(platform, shop(seed=401, records=400))
    assert_exact(platform)
    batch(lake, platform)
    assert set(check_archive(asked, platform).values()) == {0}, "nothing is new since the publication"

    ((partition, first),) = query(
        platform,
        'SELECT kafka_partition, min(kafka_offset) + 1 FROM lake.archive."order" GROUP BY 1 '
        "HAVING count(*) > 3 ORDER BY 1 LIMIT 1",
    )
    between = f"kafka_partition = {partition} AND kafka_offset BETWEEN {first} AND {first + 1}"
    lake.sql(f"DELETE FROM lake.archive.order WHERE {between}")
    said = f'lake.archive."order", partition {partition}: .* first fault: {first} to {first + 1} are missing'
    with pytest.raises(QualityError, match=said) as refused:
        check_archive(asked, platform)

    assert "anabranch drop archive.order, then" in str(refused.value)
    assert "anabranch batch --full" in str(refused.value)
    assert json.loads(run("drop", "archive.order", "--json")) == {"dropped": ["archive.order"]}
    batch(lake, platform, Plan(full=True))
    check_archive(asked, platform)
    assert_verified(lake, platform)
    assert_exact(platform)
