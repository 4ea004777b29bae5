"""Recomputes beside what is served, comparison, retention, watching, backup and restore, on the real services."""

import json
import shutil
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from batch.plan import Plan
from changelog.archive.store import s3_client
from infra.services import data
from runtime import ops
from runtime.settings import Settings
from serving import watch as watching
from tests.services import assert_exact, assert_verified, batch, feed, query, run, shop, until
from views.registry import view_names

pytestmark = pytest.mark.integration

VIEWS = view_names()

METADATA_KEPT = 51
"""Metadata files that a table keeps: the current one and 50 before it."""


@pytest.fixture(scope="module", autouse=True)
def served_from_both_sides(platform: Settings, lake: SparkSession) -> None:
    """At least three publications of runs, and records beyond the boundary."""
    while len({row["run_id"] for row in json.loads(run("publications", "--json")) if row["snapshot"]}) < 3:
        feed(platform, shop(101, 400))
        run("wait")
        batch(lake, platform)
    feed(platform, shop(104, 400))
    run("wait")


def test_a_recompute_from_raw_objects_agrees_with_what_is_served(platform: Settings, lake: SparkSession) -> None:
    batch(lake, platform, Plan(objects=True, run_id="raw"), serve=False)
    report = json.loads(run("compare", "raw", "--json"))
    assert [view["view"] for view in report["views"]] == list(VIEWS)
    assert all(view["rows"] > 0 for view in report["views"] if view["view"] != "cart_abandoned")  # takes half an hour
    assert all((view["only_served"], view["only_run"], view["changed"]) == (0, 0, 0) for view in report["views"])
    run("publish", "raw")
    assert_exact(platform)


def test_a_comparison_names_the_rows_that_differ(platform: Settings, lake: SparkSession) -> None:
    """A run that claims more than it folded: its snapshot is that of an earlier publication."""
    batch(lake, platform, Plan(run_id="claims"), serve=False)
    with ops.connect(platform) as connection:
        early = connection.execute(
            "SELECT snapshot FROM publication_views WHERE view = 'traffic' AND snapshot IS NOT NULL "
            "ORDER BY publication"
        ).fetchone()
        assert early
        connection.execute(
            "UPDATE runs SET views = jsonb_set(views, '{traffic,snapshot}', %s) WHERE run_id = 'claims'",
            (str(early["snapshot"]),),
        )
    report = {view["view"]: view for view in json.loads(run("compare", "claims", "--json"))["views"]}
    wrong = report["traffic"]
    assert wrong["only_served"] + wrong["changed"] > 0
    assert set(wrong["measures"]) <= {"events", "guests"}
    measures = {f"{name}_{side}" for name in ("events", "guests") for side in ("served", "run")}
    assert {"minute", "type", "channel"} | measures == set(wrong["examples"][0])
    assert report["revenue"]["changed"] == 0
    with ops.connect(platform) as connection:
        noted = connection.execute("SELECT report FROM comparisons WHERE run_id = 'claims'").fetchone()
        assert noted
        assert noted["report"]["unexplained"] == ["traffic"]
        connection.execute("DELETE FROM runs WHERE run_id = 'claims'")


@pytest.mark.slow
def test_history_from_any_position_is_folded_elsewhere_and_nothing_served_changes(platform: Settings) -> None:
    before = query(platform, "SELECT view, publication FROM serving.boundary ORDER BY view")
    middle = {
        "changelog.event": {
            str(partition): position // 2
            for partition, position in query(
                platform, "SELECT kafka_partition, max(last_offset) FROM lake.archive.event GROUP BY 1"
            )
        }
    }
    run("batch", "--location", "elsewhere", "--since", json.dumps(middle), "--view", "traffic")
    rest = " OR ".join(
        f"(kafka_partition = {partition} AND kafka_offset >= {offset})"
        for partition, offset in middle["changelog.event"].items()
    )
    counted = query(platform, f"SELECT count(*) FROM lake.archive.event WHERE kind = 'change' AND ({rest})")
    folded = query(platform, "SELECT sum(events) FROM lake.elsewhere.traffic")
    assert folded == counted
    assert folded < query(platform, "SELECT sum(events) FROM serving.traffic")
    assert query(platform, "SELECT view, publication FROM serving.boundary ORDER BY view") == before


def test_a_location_that_is_taken_and_a_position_that_cannot_be_served_are_refused(platform: Settings) -> None:
    run("batch", "--location", "serving", status=1)
    run("batch", "--since", "2026-01-01T00:00:00Z", status=1)


def test_rollback_goes_to_a_publication_by_number_and_once_for_each_request(platform: Settings) -> None:
    listed = json.loads(run("publications", "--json"))
    oldest = min(row["publication"] for row in listed if row["snapshot"])
    run("rollback", "--to", str(oldest))
    served = [row for row in json.loads(run("publications", "--json")) if row["served"]]
    assert {row["publication"] for row in served} == {oldest}
    run("rollback", "--to", str(oldest), status=1)
    run("release")
    assert_exact(platform)


def test_maintenance_retires_what_is_old_and_keeps_what_is_served(platform: Settings, lake: SparkSession) -> None:
    """The platform serves an old publication (see the test before): it stays, its neighbours go."""
    listed = json.loads(run("publications", "--json"))
    served = {row["publication"] for row in listed if row["served"]}
    report = json.loads(run("maintenance", "--json", ANABRANCH_BATCH__KEEP_PUBLICATIONS="2"))
    assert report["retired"] > 0
    assert report["refs"] > 0
    assert report["failed"] == []
    kept = {row["publication"] for row in json.loads(run("publications", "--json"))}
    gone = {row["publication"] for row in listed} - kept
    assert served <= kept
    assert gone
    assert_exact(platform)
    run("rollback", "--to", str(min(gone)), status=1)
    assert report["metadata_files"] > 0
    assert max(metadata_files(platform).values()) <= METADATA_KEPT + 10  # the stream goes on committing
    again = json.loads(run("maintenance", "--json", ANABRANCH_BATCH__KEEP_PUBLICATIONS="2"))
    assert (again["retired"], again["refs"]) == (0, 0)
    batch(lake, platform)
    assert_verified(lake, platform)


def metadata_files(settings: Settings) -> dict[str, int]:
    """How many metadata files each table of the lake has."""
    pages = s3_client(settings.s3).get_paginator("list_objects_v2").paginate(Bucket=settings.s3.lake_bucket)
    keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
    return dict(Counter(key.rpartition("/")[0] for key in keys if key.endswith(".metadata.json")))


def test_watch_measures_every_layer_and_tells_of_what_is_late_once(
    platform: Settings, lake: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("wait")
    assert set(watching.watch(platform).lag) == {"archiver", "derive", "speed", "ingest", "boundary"}
    feed(platform, shop(105, 200))
    run("wait")
    until(lambda: watching.watch(platform).lag["boundary"]["records"] == 200, 30, "what is fed is not built yet")
    monkeypatch.setenv("ANABRANCH_WATCH__MAX_BEHIND_SECONDS", '{"boundary": 0.001}')
    strict = Settings()
    assert set(watching.watch(strict).alerts) == {"boundary is late"}
    watching.watch(strict)
    batch(lake, platform)
    assert watching.watch(strict).alerts == {}
    with ops.connect(platform) as connection:
        row = connection.execute("SELECT told, ended_at FROM alerts WHERE alert = 'boundary is late'").fetchone()
    assert row
    assert row["told"] == "ended"
    assert row["ended_at"]


@pytest.mark.slow
def test_a_lost_database_comes_back_from_its_backup(platform: Settings, lake: SparkSession) -> None:
    """PostgreSQL's files are gone. The lake went on after the backup, and so did the log."""
    run("backup")
    feed(platform, shop(106, 400))
    run("wait")
    run("down")
    shutil.rmtree(data(platform, "postgres"))
    assert "anabranch restore" in run("up", status=1, error=True)
    run("down")
    restored = json.loads(run("restore", "--json"))
    assert "speed.main" in restored["moved"]
    run("up")
    feed(platform, shop(107, 400))
    assert_exact(platform)
    batch(lake, platform)
    assert_verified(lake, platform)
