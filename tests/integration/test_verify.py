"""Controls: verify fails when a row is removed, added or altered behind its back, in each place where rows are."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from batch.batch_table import batch_name
from runtime import ops
from runtime.settings import Settings
from serving import publication
from serving.published import current
from serving.verify import verify
from tests.services import batch, feed, run, shop
from views.registry import view_named

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def both_sides(platform: Settings, lake: SparkSession) -> None:
    """Records below the boundary and beyond it."""
    feed(platform, shop(11, 600))
    run("wait")
    batch(lake, platform)
    feed(platform, shop(12, 600))
    run("wait")


@contextmanager
def tampered(spark: SparkSession, *changes: tuple[str, str]) -> Iterator[None]:
    """Apply (table, SQL) changes, and put the tables back afterwards."""
    before = {
        table: spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").collect()[0][0]
        for table, _ in changes
    }
    try:
        for _, sql in changes:
            spark.sql(sql)
        yield
    finally:
        for table, snapshot in before.items():
            spark.sql(f"CALL lake.system.rollback_to_snapshot('{table.removeprefix('lake.')}', {snapshot})")


def offset_of(spark: SparkSession, table: str) -> str:
    """A condition that holds for one change of a table of the archive."""
    row = spark.sql(f"SELECT kafka_partition, kafka_offset FROM {table} WHERE kind = 'change' LIMIT 1").collect()[0]
    return f"kafka_partition = {row[0]} AND kafka_offset = {row[1]}"


def test_nothing_is_reported_when_nothing_was_done(platform: Settings, lake: SparkSession) -> None:
    report = verify(lake, platform)
    assert report.differences == []
    assert report.records["duplicate"] > 0
    assert report.records["bad"] > 0
    waits = {"serving.cart_abandoned"}  # half an hour, which nobody has
    assert min(number for what, number in report.compared.items() if what not in waits) > 0


def test_the_archive(platform: Settings, lake: SparkSession) -> None:
    removed, added, altered = "lake.archive.session", "lake.archive.event", "lake.archive.order"
    with tampered(
        lake,
        (removed, f"DELETE FROM {removed} WHERE {offset_of(lake, removed)}"),
        (added, f"INSERT INTO {added} SELECT * FROM {added} WHERE {offset_of(lake, added)}"),
        (altered, f"UPDATE {altered} SET identifier = 'forged' WHERE {offset_of(lake, altered)}"),
    ):
        differences = verify(lake, platform).differences
    assert any(text.startswith("archive.session: 1 offsets differ") and "missing" in text for text in differences)
    assert any(text.startswith("archive.event: 1 offsets are there more than once") for text in differences)
    assert any(text.startswith("archive.order: 1 offsets differ") and "altered" in text for text in differences)
    assert verify(lake, platform).differences == []


@pytest.mark.slow
def test_the_speed_side(platform: Settings, lake: SparkSession) -> None:
    with ops.connect(platform) as connection:
        served = {view.view: view for view in current(connection)}
    table, at = "lake.speed.main", served["traffic"]

    def one(view: str, key: str) -> str:
        rows = f"generation = {at.generation} AND epoch >= {at.epoch} AND view = '{view}'"
        row = lake.sql(f"SELECT epoch, {view}.{key} FROM {table} WHERE {rows} LIMIT 1").collect()[0]
        return f"generation = {at.generation} AND epoch = {row[0]} AND view = '{view}' AND {view}.{key} = '{row[1]}'"

    columns = ", ".join(
        "named_struct('hour', revenue.hour, 'country', revenue.country, 'currency', 'XXX', "
        "'order_value_bucket', revenue.order_value_bucket, 'rows', revenue.rows, 'revenue', revenue.revenue) AS revenue"
        if name == "revenue"
        else name
        for name in lake.table(table).columns
    )
    with tampered(
        lake,
        (table, f"DELETE FROM {table} WHERE {one('traffic', 'type')}"),
        (table, f"INSERT INTO {table} SELECT {columns} FROM {table} WHERE {one('revenue', 'currency')}"),
        (table, f"UPDATE {table} SET order_latest.status = 'FORGED' WHERE {one('order_latest', 'ref')}"),
    ):
        differences = verify(lake, platform).differences
    text = "\n".join(differences)
    assert "serving.traffic" in text
    assert "serving.revenue" in text
    assert "XXX" in text
    assert "serving.order_latest" in text
    assert "FORGED" in text
    assert verify(lake, platform).differences == []


@pytest.mark.slow
def test_the_batch_side(platform: Settings, lake: SparkSession) -> None:
    """A run with one row removed, added or altered in each view is published, as if a build had been wrong."""
    changes = {
        "traffic": "SELECT * FROM {0} EXCEPT ALL SELECT * FROM (SELECT * FROM {0} LIMIT 1)",
        "revenue": "SELECT * FROM {0} UNION ALL SELECT hour, country, 'XXX', order_value_bucket, rows, revenue FROM "
        "(SELECT * FROM {0} WHERE rows > 0 LIMIT 1)",
        "order_latest": "SELECT guest_ref, ref, kafka_offset, deleted, session_ref, 'FORGED', currency, country, "
        "total, items, created_at, modified_at FROM {0}",
    }
    with ops.connect(platform) as connection:
        served = {view.view: view for view in current(connection)}
        views = {}
        for name, sql in changes.items():
            table, pinned = batch_name(view_named(name)), served[name].snapshot
            head = lake.read.option("versionAsOf", pinned).table(table)
            head.createOrReplaceTempView(f"pinned_{name}")
            lake.sql(f"ALTER TABLE {table} CREATE OR REPLACE BRANCH forged AS OF VERSION {pinned}")
            forged = lake.sql(sql.format(f"pinned_{name}")).toDF(*head.columns)
            forged.writeTo(f"{table}.branch_forged").overwrite(F.lit(True))
            snapshot = lake.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'forged'").collect()[0][0]
            views[name] = {"snapshot": snapshot, "records": served[name].records}
        connection.execute(
            "INSERT INTO runs (run_id, kind, pipeline, generation, epoch, vector, views, code_version, state) "
            "SELECT 'forged', kind, pipeline, generation, epoch, vector, %s, code_version, state FROM runs "
            "WHERE run_id = %s",
            (json.dumps(views), served["traffic"].run_id),
        )
    publication.publish(platform, "forged")
    try:
        text = "\n".join(verify(lake, platform).differences)
    finally:
        publication.rollback(platform, [])
        publication.release(platform)
        with ops.connect(platform) as connection:
            connection.execute("UPDATE runs SET state = 'forged' WHERE run_id = 'forged'")
    assert "serving.traffic" in text
    assert "serving.revenue" in text
    assert "serving.order_latest" in text
    assert "FORGED" in text
    assert verify(lake, platform).differences == []
