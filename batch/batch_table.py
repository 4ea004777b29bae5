"""``batch.<view>``: partial states, one branch for each run, made from what is served. The head has no meaning."""

import uuid
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from batch.plan import SERVED_LOCATION
from runtime.errors import ConflictError, ContractError
from runtime.spark import CATALOG, spark_type
from views.algebra import View

ATTEMPTS = 8

EMPTY_TAG = "empty"
"""Tag of the first snapshot, without rows: a full run begins there."""


def batch_name(view: View, location: str = SERVED_LOCATION) -> str:
    """``lake.batch.<view>``, or ``lake.<location>.<view>_states``: there, ``<view>`` is what people read."""
    return f"{CATALOG}.{location}.{view.name}" + ("" if location == SERVED_LOCATION else "_states")


def ensure_batch_table(spark: SparkSession, name: str, view: View) -> None:
    """Create a table for the view's partial states with its empty snapshot. A second call changes nothing, also after a
    crash half way; in a location of its own it begins anew. Raises ContractError if the table has other columns."""
    if name != batch_name(view):
        spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
    columns = ", ".join(f"{f.name} {f.type} COMMENT '{f.comment.replace(chr(39), chr(8217))}'" for f in view.fields)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg TBLPROPERTIES ('format-version' = '2', "
        "'write.parquet.compression-codec' = 'zstd', 'write.metadata.delete-after-commit.enabled' = 'true', "
        "'write.metadata.previous-versions-max' = '50')"
    )
    there = [(field.name, field.dataType.simpleString()) for field in spark.table(name).schema.fields]
    wanted = [(field.name, spark_type(field.type)) for field in view.fields]
    if there != wanted:
        raise ContractError(
            f"{name} has the columns {there}, the view {view.name} has {wanted}: what is published reads the old ones, "
            "so a view whose columns change needs a new name"
        )
    if _ref(spark, name, EMPTY_TAG) is None:
        spark.table(name).limit(0).writeTo(name).append()
        spark.sql(f"ALTER TABLE {name} CREATE TAG IF NOT EXISTS {EMPTY_TAG}")


def write_run(
    spark: SparkSession, name: str, run_id: str, base: int | None, slice_: DataFrame, properties: Mapping[str, str]
) -> int:
    """Append ``slice_`` on a branch from snapshot ``base`` (None: from the empty one), tag it, drop the branch.

    Returns the id of the snapshot. A second call with the same ``run_id`` makes another snapshot with a tag of its own
    (the first may be served already), also while the first still runs: each has a branch of its own, and who is done
    first clears away after all. Raises ConflictError if others kept being first.
    """
    start = base if base is not None else _ref(spark, name, EMPTY_TAG)
    for _ in range(ATTEMPTS):
        snapshot = _append(spark, name, f"branch_{run_id}_{uuid.uuid4().hex[:8]}", start, slice_, properties)
        if snapshot is not None:
            break
    else:
        raise ConflictError(f"{name}: the branch of run {run_id} was taken away while it was written; run it again")
    _alter(spark, f"ALTER TABLE {name} CREATE TAG IF NOT EXISTS run_{run_id}_{snapshot} AS OF VERSION {snapshot}")
    for row in spark.sql(f"SELECT name FROM {name}.refs WHERE type = 'BRANCH'").collect():
        if row["name"].startswith(f"branch_{run_id}_"):  # this one, and those of attempts that were killed
            _alter(spark, f"ALTER TABLE {name} DROP BRANCH IF EXISTS {row['name']}")
    return snapshot


def _append(
    spark: SparkSession, name: str, branch: str, start: int | None, slice_: DataFrame, properties: Mapping[str, str]
) -> int | None:
    """Append ``slice_`` on a new branch from snapshot ``start``. Returns the id of the snapshot, or None if the branch
    was taken away meanwhile: then Iceberg has written on the head of the table, which means nothing."""
    _alter(spark, f"ALTER TABLE {name} CREATE OR REPLACE BRANCH {branch} AS OF VERSION {start}")
    writer = slice_.writeTo(f"{name}.branch_{branch}")
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.anabranch.{key}", value)
    writer.append()
    snapshot = _ref(spark, name, branch)
    written = spark.sql(f"SELECT parent_id FROM {name}.snapshots WHERE snapshot_id = {snapshot or 0}").first()
    return snapshot if written is not None and written["parent_id"] == start else None


def _alter(spark: SparkSession, statement: str) -> None:
    """Run a statement that moves a branch or a tag; again if another came between (Iceberg retries data only)."""
    for attempt in range(ATTEMPTS):
        try:
            spark.sql(statement)
            return
        except Py4JJavaError as error:
            if "CommitFailedException" not in str(error) or attempt + 1 == ATTEMPTS:
                raise


def slices(spark: SparkSession, view: View, snapshot: int) -> int:
    """How many runs were added since the last combined one, from the snapshot's own properties."""
    return int(_properties(spark, batch_name(view), snapshot).get("anabranch.slices", "0"))


def folded_by(spark: SparkSession, name: str, snapshot: int) -> str | None:
    """The version of the code that folded a snapshot, from its own properties."""
    return _properties(spark, name, snapshot).get("anabranch.code")


def _properties(spark: SparkSession, name: str, snapshot: int) -> dict[str, str]:
    row = spark.sql(f"SELECT summary FROM {name}.snapshots WHERE snapshot_id = {snapshot}").first()
    return dict(row["summary"]) if row else {}


def _ref(spark: SparkSession, table: str, name: str) -> int | None:
    row = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = '{name}'").first()
    return int(row["snapshot_id"]) if row else None
