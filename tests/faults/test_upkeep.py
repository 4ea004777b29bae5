"""Maintenance again and again beside a stream that commits as fast as it can: nothing is lost, doubled, or stuck."""

import json
import threading
import time

import pytest
from pyspark.sql import SparkSession

from batch.maintenance import maintain
from changelog.producer import ChangelogProducer
from changelog.sources.simulate import Shop
from runtime.settings import Settings
from speed.compaction import STEP
from tests.services import assert_exact, batch, query, run, until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]

BUCKETS = 4
"""How many buckets of epochs the stream fills meanwhile."""

RATE = 25
"""Records a second: epochs are what is wanted, and the tests that come after read every record again."""


@pytest.fixture
def busy(platform: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The platform, with few publications kept."""
    monkeypatch.setenv("ANABRANCH_BATCH__KEEP_PUBLICATIONS", "2")
    return Settings()


def epochs(settings: Settings) -> int:
    """The newest epoch, or -1."""
    return int(query(settings, "SELECT coalesce(max(epoch), -1) FROM ops.epochs")[0][0])


def test_maintenance_every_few_seconds_under_a_running_stream(busy: Settings, lake: SparkSession) -> None:
    over = threading.Event()

    def sell() -> None:
        with ChangelogProducer(busy, rate=RATE) as producer:
            for record in Shop(seed=111, duplicates=0.05, late=0.05, broken=0.01, rate=RATE).records(10_000_000):
                if over.is_set():
                    return
                producer.send(record)

    shop = threading.Thread(target=sell)
    shop.start()
    reports, began, published, bucket = [], epochs(busy), 0, busy.speed.bucket_epochs
    try:
        deadline = time.monotonic() + 900
        while (now := epochs(busy)) < began + BUCKETS * bucket or published < 4:
            assert time.monotonic() < deadline, f"the stream got no further than epoch {now}"
            if now - began > published * bucket and published < 4:
                batch(lake, busy)
                published += 1
            reports.append(maintain(lake, busy))
    finally:
        over.set()
        shop.join()
    assert published == 4
    assert sum(report.retired for report in reports) > 0
    assert sum(report.speed_partitions for report in reports) > 0, "no row of the speed table was ever deleted"
    assert sum(bool(report.failed) for report in reports) < len(reports) / 2, reports
    until(lambda: maintain(lake, busy).failed == [], 60, "maintenance comes through")
    assert_exact(busy)
    doubled = "SELECT 1 FROM ops.epochs GROUP BY generation, epoch, topic, kafka_partition HAVING count(*) > 1"
    assert query(busy, f"SELECT count(*) FROM ({doubled})") == [[0]]
    files = query(busy, 'SELECT count(*) FROM lake.speed."main$files"')[0][0]
    kept = query(busy, f"SELECT count(DISTINCT epoch / {bucket}) FROM ops.epochs")[0][0]
    assert files <= kept + 3 * STEP, "files are not put together"
    assert json.loads(run("verify", "--json"))["differences"] == []
