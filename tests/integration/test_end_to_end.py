"""The whole way on real services, as a user goes it: by commands. The tests of this module build on one another."""

import csv
import io
import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.envelope import encode, envelope
from changelog.producer import PARTITIONER, Record
from runtime import trino
from runtime.settings import Settings
from serving import publication
from tests.services import assert_exact, batch, feed, query, run, served, shop
from views.registry import view_names

pytestmark = pytest.mark.integration


def boundary() -> dict[str, dict[str, Any]]:
    return {row["view"]: row for row in json.loads(run("boundary", "--json"))}


def test_before_the_first_record_the_views_are_there_and_empty(platform: Settings) -> None:
    for view in view_names():
        assert query(platform, f"SELECT count(*) FROM serving.{view}") == [[0]]
        assert query(platform, f"SELECT count(*) FROM serving.{view}_states") == [[0]]
    assert {row["batch_records"] for row in boundary().values()} == {0}
    run("wait")


def test_every_service_is_listed_running_with_its_process_and_address(platform: Settings) -> None:
    printed = json.loads(run("status", "--json"))["services"]
    services = {service["name"]: service for service in printed}
    assert list(services) == ["postgres", "kafka", "minio", "trino", "archiver", "derive", "speed", "commands"]
    assert all(service["state"] == "running" and service["pid"] and service["url"] for service in services.values())


def test_load_refuses_bad_lines_by_number_and_takes_the_good_ones(platform: Settings, tmp_path: Path) -> None:
    order = {
        "ref": "loaded-1", "guestRef": "g-1", "status": "PAID", "currency": "GBP", "total": 12.34, "items": [],
        "createdAt": "2026-01-01T10:15:00.000Z", "modifiedAt": "2026-01-01T10:15:00.000Z",
    }  # fmt: skip
    good = json.dumps({"entity": "order", "envelope": json.loads(encode(envelope("test", "l-1", order)))})
    path = tmp_path / "changes.jsonl"
    path.write_text(f"{good}\n\n{{\n" + good.replace('"PAID"', '"LOST"') + "\n")
    summary = json.loads(run("load", str(path), "--json", status=1))
    assert (summary["acknowledged"], summary["refused"]) == (1, 2)
    run("wait")
    assert query(platform, "SELECT ref, total FROM serving.order_latest") == [["loaded-1", Decimal("12.3400")]]


def test_speed_alone_is_exact_with_quiet_and_empty_partitions(platform: Settings) -> None:
    one_guest = [record for record in shop(3, 400) if record.key == shop(3, 400)[0].key]
    feed(platform, one_guest)
    assert_exact(platform)
    quiet = query(platform, "SELECT count(*) FROM ops.epochs WHERE records = 0 AND start_offset = end_offset")
    assert quiet[0][0] > 0, "an epoch notes the partitions in which nothing happened"
    feed(platform, shop(4, 1500))
    assert_exact(platform)
    kinds = query(platform, "SELECT sum(records) > 0, sum(bad) > 0, sum(tombstones) > 0 FROM ops.epochs")
    assert kinds == [[True, True, True]]
    found = query(platform, "SELECT topic, kafka_partition, kafka_offset, reason FROM ops.bad_records")
    assert found
    assert all(reason for *_, reason in found)


def test_a_full_batch_moves_the_boundary_and_changes_no_answer(platform: Settings) -> None:
    before = served(platform)
    result = json.loads(run("batch", "--full", "--no-publish", "--json"))
    assert result["run"]["kind"] == "full"
    assert boundary()["traffic"]["batch_records"] == 0, "a run that is not published serves nobody"
    run("publish")
    assert boundary()["traffic"]["batch_records"] > 0
    assert served(platform).difference(before) == ""
    assert_exact(platform)


def test_an_incremental_batch_adds_what_is_new(platform: Settings) -> None:
    first = boundary()
    feed(platform, shop(5, 1000))
    result = json.loads(run("batch", "--json"))
    assert result["run"]["kind"] == "incremental"
    assert result["publication"] == boundary()["traffic"]["publication"]
    assert boundary()["order_latest"]["epoch"] > first["order_latest"]["epoch"]
    assert boundary()["order_latest"]["batch_records"] > first["order_latest"]["batch_records"]
    assert_exact(platform)


def test_publish_again_changes_nothing(platform: Settings) -> None:
    before = boundary()
    assert "served already" in run("publish")
    assert boundary()["revenue"]["publication"] == before["revenue"]["publication"]


def test_rollback_serves_what_was_before_and_the_next_run_builds_on_that(
    platform: Settings, lake: SparkSession
) -> None:
    forward = boundary()
    run("rollback")
    back = boundary()
    assert back["revenue"]["batch_records"] < forward["revenue"]["batch_records"]
    assert_exact(platform)
    feed(platform, shop(6, 500))
    assert batch(lake, platform, serve=False).kind == "incremental"
    run("publish", status=1)
    assert boundary()["revenue"]["publication"] == back["revenue"]["publication"], "it is held"
    run("release")
    run("publish")
    assert boundary()["revenue"]["batch_records"] > forward["revenue"]["batch_records"]
    assert_exact(platform)


@pytest.mark.slow
def test_rollback_of_one_view_leaves_the_others(platform: Settings, lake: SparkSession) -> None:
    before = boundary()
    run("rollback", "revenue")
    after = boundary()
    assert after["traffic"]["publication"] == before["traffic"]["publication"]
    assert after["revenue"]["epoch"] < before["revenue"]["epoch"]
    assert_exact(platform)
    run("release")
    batch(lake, platform)
    assert len({row["epoch"] for row in boundary().values()}) == 1
    assert_exact(platform)


def test_queries_under_publication_see_the_old_pair_or_the_new_one(platform: Settings) -> None:
    truth = served(platform)
    expected_rows = {
        "revenue": query(platform, "SELECT count(*), sum(orders), sum(revenue) FROM serving.revenue"),
        "order_latest": query(platform, "SELECT count(*), sum(total), max(ref) FROM serving.order_latest"),
    }
    over = threading.Event()
    wrong: list[Any] = []
    asked = 0

    def ask() -> None:
        nonlocal asked
        lake = trino.connect(platform)
        while not over.is_set():
            for view, sql in (
                ("revenue", "SELECT count(*), sum(orders), sum(revenue) FROM serving.revenue"),
                ("order_latest", "SELECT count(*), sum(total), max(ref) FROM serving.order_latest"),
            ):
                rows = [list(row) for row in trino.execute(lake, sql)[1]]
                asked += 1
                if rows != expected_rows[view]:
                    wrong.append((view, rows))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        publication.rollback(platform, [])
        publication.release(platform)
        publication.publish(platform)
    over.set()
    for thread in threads:
        thread.join()
    assert asked > 10
    assert wrong == []
    assert served(platform).difference(truth) == ""


def test_an_order_never_vanishes_while_its_versions_arrive(platform: Settings) -> None:
    """Both sides of the join that picks the newest version see one snapshot, also while epochs are committed."""
    order = {
        "ref": "steady", "guestRef": "steady-guest", "status": "PLACED", "currency": "GBP", "total": 1, "items": [],
        "createdAt": "2026-01-01T10:15:00.000Z", "modifiedAt": "2026-01-01T10:15:00.000Z",
    }  # fmt: skip
    feed(platform, [Record("changelog.order", b"steady-guest", encode(envelope("test", "steady-0", order)))])
    run("wait")
    over = threading.Event()

    def change() -> None:
        version, last = 0, order
        while not over.wait(0.3):
            version += 1
            new = {**last, "total": version}
            made = encode(envelope("test", f"steady-{version}", new, last))
            feed(platform, [Record("changelog.order", b"steady-guest", made)])
            last = new

    thread = threading.Thread(target=change)
    thread.start()
    totals = []
    for _ in range(60):
        rows = query(platform, "SELECT total FROM serving.order_latest WHERE ref = 'steady'")
        assert len(rows) == 1, "there is one newest version at every moment"
        totals.append(rows[0][0])
    over.set()
    thread.join()
    assert totals == sorted(totals)
    assert totals[-1] > totals[0]


def test_every_way_in_agrees_with_kafka_on_the_partition_of_a_key(platform: Settings) -> None:
    """What this producer chose is what Java's partitioner (murmur2) says, for every record in the log."""
    assert PARTITIONER == "murmur2_random"
    rows = query(platform, "SELECT DISTINCT key, kafka_partition FROM lake.archive.event WHERE key IS NOT NULL")
    assert len({partition for _, partition in rows}) > 1
    for key, partition in rows:
        assert (murmur2(bytes(key)) & 0x7FFFFFFF) % platform.kafka.partitions == partition


def murmur2(data: bytes) -> int:
    """Java's ``org.apache.kafka.common.utils.Utils.murmur2``, 32 bits."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    for i in range(0, len(data) // 4 * 4, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[len(data) // 4 * 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_query_prints_what_was_asked_for(platform: Settings, form: str) -> None:
    printed = run("query", "SELECT sum(events) AS events FROM serving.traffic", "--format", form)
    number = str(query(platform, "SELECT sum(events) FROM serving.traffic")[0][0])
    assert number in printed
    if form == "csv":
        assert list(csv.reader(io.StringIO(printed))) == [["events"], [number]]
    if form == "json":
        assert json.loads(printed) == [{"events": int(number)}]


def test_a_wrong_query_is_an_error_with_a_message(platform: Settings) -> None:
    assert run("query", "SELECT nothing FROM serving.traffic", status=1) == ""


def test_verify_is_exact_at_the_end(platform: Settings) -> None:
    report = json.loads(run("verify", "--json"))
    assert report["differences"] == []
    assert report["records"].keys() == {"change", "duplicate", "bad", "tombstone"}
