"""``batch.<view>``: partial states, one branch for each run, made from what is served. The head has no meaning."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from runtime.spark import CATALOG
from views.algebra import View

EMPTY_TAG = "empty"
"""Tag of the first snapshot, without rows: a full run begins there."""


SERVED_LOCATION = "batch"
"""Where runs that can be published are. Another location is a namespace of its own, which is never served."""


def batch_name(view: View, location: str = SERVED_LOCATION) -> str:
    """``lake.batch.<view>``, or ``lake.<location>.<view>_states``: there, ``<view>`` is what people read."""
    return f"{CATALOG}.{location}.{view.name}" + ("" if location == SERVED_LOCATION else "_states")


def ensure_batch_table(spark: SparkSession, name: str, view: View) -> None:
    """Create a table for the view's partial states with its empty snapshot. A second call changes nothing, also after a
    crash half way."""
    columns = ", ".join(f"{f.name} {f.type} COMMENT '{f.comment.replace(chr(39), chr(8217))}'" for f in view.fields)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2', "
        "'write.parquet.compression-codec' = 'zstd', 'write.metadata.delete-after-commit.enabled' = 'true', "
        "'write.metadata.previous-versions-max' = '50')"
    )
    if _ref(spark, name, EMPTY_TAG) is None:
        spark.table(name).limit(0).writeTo(name).append()
        spark.sql(f"ALTER TABLE {name} CREATE TAG IF NOT EXISTS {EMPTY_TAG}")


def write_run(
    spark: SparkSession, name: str, run_id: str, base: int | None, slice_: DataFrame, properties: Mapping[str, str]
) -> int:
    """Append ``slice_`` on a branch from snapshot ``base`` (None: from the empty one), tag it, drop the branch.

    Returns the id of the snapshot. A second call with the same ``run_id`` makes another snapshot with a tag of its own
    (the first may be served already) and replaces a branch that the first one left.
    """
    branch = f"branch_{run_id}"
    start = base if base is not None else _ref(spark, name, EMPTY_TAG)
    spark.sql(f"ALTER TABLE {name} CREATE OR REPLACE BRANCH {branch} AS OF VERSION {start}")
    writer = slice_.writeTo(f"{name}.branch_{branch}")
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.anabranch.{key}", value)
    writer.append()
    snapshot = _ref(spark, name, branch)
    assert snapshot is not None
    spark.sql(f"ALTER TABLE {name} CREATE TAG IF NOT EXISTS run_{run_id}_{snapshot} AS OF VERSION {snapshot}")
    spark.sql(f"ALTER TABLE {name} DROP BRANCH IF EXISTS {branch}")
    return snapshot


def slices(spark: SparkSession, view: View, snapshot: int) -> int:
    """How many runs were added since the last combined one, from the snapshot's own properties."""
    row = spark.sql(f"SELECT summary FROM {batch_name(view)}.snapshots WHERE snapshot_id = {snapshot}").first()
    return int(row["summary"].get("anabranch.slices", "0")) if row else 0


def _ref(spark: SparkSession, table: str, name: str) -> int | None:
    row = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = '{name}'").first()
    return int(row["snapshot_id"]) if row else None
