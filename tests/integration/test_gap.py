"""Records that Kafka has let go of before they were ingested: whoever asks for them is told, until they are."""

import json

import pytest
from pyspark.sql import SparkSession

from batch.run import wait_for_archiver
from changelog.envelope import encode, envelope
from changelog.producer import ChangelogProducer, Record
from changelog.topics import end_offsets
from runtime.settings import Settings
from tests.services import batch, let_go, run
from tests.unit.changelog.samples import SAMPLES

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_an_answer_that_is_not_whole_says_what_is_missing(platform: Settings, lake: SparkSession) -> None:
    batch(lake, platform)
    order = {**SAMPLES["order"], "ref": "gap-1", "guestRef": "gap"}
    with ChangelogProducer(platform) as producer:
        producer.send(Record("changelog.order", b"gap", encode(envelope("gap-shop", "gap-1", order))))
    ((partition, end),) = producer.ends["changelog.order"].items()
    run("wait")
    assert wait_for_archiver(platform, end_offsets(platform), 90)
    let_go(platform, {"changelog.order": {partition: end}})
    said = json.loads(run("audit", "--order", "gap-1", "--json", status=1))
    assert (said["total"], said["records"]) == (0, [])
    assert said["missing"] == [f"changelog.order/{partition}/{end - 1}-{end - 1}"]
    assert "MISSING changelog.order" in run("audit", "--order", "gap-1", status=1, error=True)
    batch(lake, platform)
    said = json.loads(run("audit", "--order", "gap-1", "--json"))
    assert [(row["service"], row["offset"]) for row in said["records"]] == [("gap-shop", end - 1)]
