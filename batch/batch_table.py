"""``batch.<view>``: partial states, one branch for each run, made from what is served. The head has no meaning."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from batch.plan import SERVED_LOCATION
from runtime.errors import ConflictError, ContractError
from runtime.settings import Settings
from runtime.spark import CATALOG, deleting, spark_type
from views.algebra import View

ATTEMPTS = 8

EMPTY_TAG = "empty"
"""Tag of the first snapshot, without rows: a full run begins there."""


def batch_name(view: View, location: str = SERVED_LOCATION) -> str:
    """``lake.batch.<view>``, or ``lake.<location>.<view>_states``: there, ``<view>`` is what people read."""
    return f"{CATALOG}.{location}.{view.name}" + ("" if location == SERVED_LOCATION else "_states")


def ensure_batch_table(spark: SparkSession, settings: Settings, name: str, view: View) -> None:
    """Create a table for the view's partial states with its empty snapshot. A second call changes nothing, also after a
    crash half way; in a location of its own it begins anew. Raises ContractError if the table has other columns."""
    if name != batch_name(view):
        deleting(spark, settings).sql(f"DROP TABLE IF EXISTS {name} PURGE")
    if not spark.catalog.tableExists(name):
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
    if _ref(_table(spark, name), EMPTY_TAG) is None:
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
    start = base if base is not None else _ref(_table(spark, name), EMPTY_TAG)
    for _ in range(ATTEMPTS):
        snapshot = _append(spark, name, f"branch_{run_id}_{uuid.uuid4().hex[:8]}", start, slice_, properties)
        if snapshot is not None:
            break
    else:
        raise ConflictError(f"{name}: the branch of run {run_id} was taken away while it was written; run it again")

    def kept(table: Any) -> None:
        changes = table.manageSnapshots().createTag(f"run_{run_id}_{snapshot}", snapshot)
        for ref in list(table.refs()):
            if ref.startswith(f"branch_{run_id}_"):  # this one, and those of attempts that were killed
                changes = changes.removeBranch(ref)
        changes.commit()

    _commit(spark, name, kept)
    return snapshot


def forget_run(spark: SparkSession, name: str, run_id: str, snapshot: int) -> None:
    """Drop the tag that :func:`write_run` made, so that the snapshot can expire. A second call changes nothing."""
    tag = f"run_{run_id}_{snapshot}"

    def gone(table: Any) -> None:
        if _ref(table, tag) is not None:
            table.manageSnapshots().removeTag(tag).commit()

    _commit(spark, name, gone)


def _append(
    spark: SparkSession, name: str, branch: str, start: int | None, slice_: DataFrame, properties: Mapping[str, str]
) -> int | None:
    """Append ``slice_`` on a new branch from snapshot ``start``. Returns the id of the snapshot, or None if the branch
    was taken away meanwhile: then Iceberg has written on the head of the table, which means nothing."""
    _commit(spark, name, lambda table: table.manageSnapshots().createBranch(branch, start).commit())
    writer = slice_.writeTo(f"{name}.branch_{branch}")
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.anabranch.{key}", value)
    writer.append()
    table = _table(spark, name)
    snapshot = _ref(table, branch)
    return snapshot if snapshot is not None and table.snapshot(snapshot).parentId() == start else None


def _table(spark: SparkSession, name: str) -> Any:
    """Iceberg's own handle of a table as it is now: a query of its metadata would be a job of Spark's each time."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)


def _commit(spark: SparkSession, name: str, change: Callable[[Any], None]) -> None:
    """Move branches and tags of a table; again if another commit came between."""
    for attempt in range(ATTEMPTS):
        try:
            change(_table(spark, name))
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


def taken_in(spark: SparkSession, name: str, snapshot: int) -> int:
    """The last of the erasures that a snapshot was folded without."""
    return int(_properties(spark, name, snapshot).get("anabranch.erasures", "0"))


def _properties(spark: SparkSession, name: str, snapshot: int) -> dict[str, str]:
    found = _table(spark, name).snapshot(snapshot)
    return dict(found.summary()) if found else {}


def _ref(table: Any, name: str) -> int | None:
    found = table.refs().get(name)
    return None if found is None else int(found.snapshotId())
