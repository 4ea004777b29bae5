"""Kafka lets go of what was not derived yet: the service derives it from the archive, exactly, or stops where that
lacks a part.

The tests build on one another, and on an archive that has everything."""

import json
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog.archive.secor import start_of
from changelog.archive.store import ArchiveStore, s3_client
from changelog.derive import SOURCES
from changelog.derived import DERIVED
from changelog.latest import Latest, updates
from changelog.rebuild import missing
from changelog.said import Said
from changelog.topics import delete_topics, end_offsets, start_offsets
from infra import prepare, supervise
from runtime.errors import TransientError
from runtime.settings import Settings
from tests.oracle import LogRecord, Oracle
from tests.services import (
    assert_derived,
    await_derived,
    batch,
    feed,
    in_a_transaction,
    let_go,
    query,
    read_log,
    run,
    served,
    shop,
    start,
    status,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ARCHIVED: list[LogRecord] = []
"""The log since the service stopped, as it was before Kafka let go of it."""

SHOP = shop(401, 800)


def failed(says: str) -> bool:
    """Whether the service has stopped for good, saying so."""
    service = status()["derive"]
    return service["state"] == "failed" and says in str(service["detail"])


def test_what_kafka_let_go_of_before_it_was_derived_is_not_passed_over(
    platform: Settings, lake: SparkSession, tmp_path: Path
) -> None:
    """Where the archive lacks a part of it the service stops and says which: nothing of what comes after it is derived
    in that partition, or older versions would never be written. Nor does anybody learn what the log last said."""
    await_derived(platform)
    supervise.stop_services(platform, ["derive"])
    starts = start_offsets(platform)
    feed(platform, SHOP[:300])
    in_a_transaction(platform, SHOP[300:400], commit=False)
    in_a_transaction(platform, SHOP[300:500], commit=True)
    feed(platform, SHOP[500:])
    run("wait")
    ARCHIVED.extend(r for r in read_log(platform) if r.offset >= starts[r.topic][r.partition])
    batch(lake, platform)
    archived = dict(query(platform, "SELECT topic || '/' || cast(kafka_partition AS varchar), kafka_offset "
                                    "FROM ops.public.archived"))  # fmt: skip
    partitions = range(platform.kafka.partitions)
    let_go(platform, {topic: {p: archived[f"{topic}/{p}"] for p in partitions} for topic in SOURCES})
    feed(platform, SHOP)  # copies, of originals that only the archive has
    feed(platform, shop(402, 200))
    store, gone = ArchiveStore(platform.s3), next(one for one in missing(platform) if one.topic == "changelog.order")
    objects = [item for item in store.list_objects(gone.topic) if item.partition == gone.partition]
    key = max((start_of(item.key), item.key) for item in objects if start_of(item.key) <= gone.last)[1]
    data = store.get(key)
    objects_of = s3_client(platform.s3)
    objects_of.delete_object(Bucket=platform.s3.archive_bucket, Key=key)
    try:
        supervise.start_service(platform, "derive")
        until(lambda: failed("anabranch latest rebuild --accept-hole changelog.order/"), 60, "it stops and says so")
        assert gone in missing(platform)
        said = Said(platform, tmp_path / "said", DERIVED)
        with pytest.raises(TransientError, match="anabranch latest rebuild"):
            said.catch_up()
        said.close()
        assert "--accept-hole changelog.order/" in run("latest", "rebuild", status=1, error=True)
        until(lambda: failed("anabranch latest rebuild"), 60, "the service was started again, and says what is missing")
    finally:
        objects_of.put_object(Bucket=platform.s3.archive_bucket, Key=key, Body=data)


def test_it_is_derived_from_the_archive_once_and_in_order_even_if_it_is_killed(platform: Settings) -> None:
    """By the service itself, or by the command."""
    kill = {"ANABRANCH_KILL_AT": "derive.before-commit#3", "ANABRANCH_DERIVE__MAX_RECORDS": "20"}
    process = start(module="changelog.derive", **kill)
    _, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, err
    assert "it is derived from the archive" in err
    assert len(missing(platform)) > 0
    supervise.start_service(platform, "derive")
    until(lambda: status()["derive"]["state"] == "running", 60, "the service runs")
    assert_derived(platform, ARCHIVED + read_log(platform))
    assert json.loads(run("latest", "rebuild", "--json")) == {}
    until(lambda: status()["derive"]["state"] == "running", 60, "the service runs again")
    await_derived(platform)


def assert_begins_anew(reader: Latest) -> None:
    """One that followed what was deleted reads what took its place; on the way it may not be answered."""

    def anew() -> bool:
        try:
            return reader.read(1).anew
        except TransientError:
            return False

    until(anew, 60, "it begins anew")


def test_a_derived_topic_that_was_lost_stops_the_service_until_all_are_made_anew(platform: Settings) -> None:
    supervise.stop_services(platform, ["derive"])
    delete_topics(platform, ["latest.order"])
    prepare.topics(platform)  # as `anabranch up` would
    supervise.start_service(platform, "derive")
    until(lambda: failed("anabranch latest rebuild --anew"), 60, "it stops and names the remedy")
    with Latest(platform, "guest") as before:
        until(lambda: before.read(1).caught_up, 60, "a reader has read the old topics")
        run("latest", "rebuild", "--anew")
        assert_begins_anew(before)
    until(lambda: status()["derive"]["state"] == "running", 60, "the service runs again")
    await_derived(platform)
    run("wait")
    views, oracle = served(platform).views, Oracle([], set())
    for entity in DERIVED:
        for update in updates(platform, entity, follow=False):
            if update.version is not None:
                current = update.version.current
                oracle.entities[entity][current.get("guestRef", update.ref), update.ref] = current
    assert oracle.order_latest() == views["order_latest"]
    assert oracle.guest_latest() == views["guest_latest"]
    assert oracle.session_latest() == views["session_latest"]
    assert len(oracle.entities["order"]) > 100
    assert sum(end for parts in end_offsets(platform, ["latest.order"]).values() for end in parts.values()) > 100
