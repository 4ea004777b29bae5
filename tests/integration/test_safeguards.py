"""What is refused, however it comes about: two codes in one view, builds in each other's way, going back unasked."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession

from batch.batch_table import batch_name, write_run
from batch.plan import Plan
from runtime import ops
from runtime.settings import Settings
from serving import watch as watching
from tests.services import assert_exact, assert_verified, batch, feed, query, run, shop
from views.registry import view_named

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def served_from_both_sides(platform: Settings, lake: SparkSession) -> None:
    feed(platform, shop(seed=201, records=300))
    run("wait")
    batch(lake, platform)


def test_two_codes_are_never_put_into_one_view(platform: Settings, lake: SparkSession) -> None:
    before = query(platform, "SELECT view, publication FROM serving.boundary ORDER BY view")
    feed(platform, shop(seed=202, records=100))
    run("wait")
    batch(lake, platform, Plan(run_id="same_code"), serve=False)
    with ops.connect(platform) as connection:
        connection.execute("UPDATE generations SET code_version = 'another'")
        try:
            assert "anabranch generation new" in run("batch", status=1, error=True)
            assert "folded by" in run("publish", "same_code", status=1, error=True)
        finally:
            connection.execute("UPDATE generations SET code_version = %s", (code_of(platform, "same_code"),))
    assert query(platform, "SELECT view, publication FROM serving.boundary ORDER BY view") == before
    run("publish", "same_code")
    assert_exact(platform)


def code_of(settings: Settings, run_id: str) -> str:
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT code_version FROM runs WHERE run_id = %s", (run_id,)).fetchone()
    assert row
    return str(row["code_version"])


@pytest.mark.slow
def test_builds_of_one_name_at_one_time_each_add_to_what_they_were_made_from(
    platform: Settings, lake: SparkSession
) -> None:
    view = view_named("traffic")
    name = batch_name(view)
    base = query(platform, "SELECT snapshot FROM serving.boundary WHERE view = 'traffic'")[0][0]
    rows = query(platform, f"SELECT count(*) FROM {name} FOR VERSION AS OF {base}")[0][0]
    slices = [lake.read.option("versionAsOf", base).table(name).limit(number) for number in (3, 5)]
    with ThreadPoolExecutor() as pool:
        snapshots = list(pool.map(lambda s: write_run(lake, name, "twice", base, s, {"run": "twice"}), slices))
    counted = [query(platform, f"SELECT count(*) FROM {name} FOR VERSION AS OF {s}")[0][0] for s in snapshots]
    assert counted == [rows + 3, rows + 5]


@pytest.mark.slow
def test_a_recompute_that_ends_behind_the_schedule_is_published_once(platform: Settings, lake: SparkSession) -> None:
    batch(lake, platform, Plan(full=True, run_id="slow"), serve=False)
    feed(platform, shop(seed=203, records=200))
    run("wait")
    batch(lake, platform)
    feed(platform, shop(seed=204, records=100))
    run("publish", "slow")
    assert query(platform, "SELECT DISTINCT run_id FROM serving.boundary") == [["slow"]]
    assert_exact(platform)
    batch(lake, platform)
    assert "rollback" in run("publish", "slow", status=1, error=True)
    assert_verified(lake, platform)


def test_a_service_that_failed_is_told_of_and_has_still_reached_its_position(platform: Settings) -> None:
    with ops.connect(platform) as connection:
        row = connection.execute("SELECT state FROM services WHERE name = 'archiver'").fetchone()
        connection.execute("INSERT INTO services VALUES ('another', 1, 'failed', '{\"error\": \"broken\"}', now())")
        try:
            found = watching.watch(platform)
        finally:
            connection.execute("DELETE FROM services WHERE name = 'another'")
    assert row == {"state": "running"}
    assert "broken" in found.alerts["another does not work"]
    assert "another does not work" not in watching.watch(platform).alerts
    assert found.lag["archiver"]["records"] is not None
