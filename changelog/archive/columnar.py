"""The columnar archive as its readers see it: ``archive.<entity>``, one row for each offset."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from changelog.classify import BAD, ERASED
from changelog.erased import NOBODY, Erased
from changelog.positions import Vector
from changelog.typed import entity_type, in_snake_case, superset_type
from runtime.settings import topic_of
from runtime.spark import CATALOG


def archive_name(entity: str) -> str:
    """``lake.archive.<entity>``."""
    return f"{CATALOG}.archive.{entity}"


def newest_snapshots(spark: SparkSession, entities: Iterable[str]) -> dict[str, int]:
    """The newest snapshot of the archive table of each entity."""
    queries = (
        f"SELECT '{entity}' AS entity, snapshot_id FROM {archive_name(entity)}.refs WHERE name = 'main'"
        for entity in entities
    )
    return {row["entity"]: row["snapshot_id"] for row in spark.sql(" UNION ALL ".join(queries)).collect()}


def below(vector: Vector) -> str:
    """Spark SQL condition on topic, kafka_partition and kafka_offset: what lies before a position."""
    return " OR ".join(
        f"(topic = '{topic}' AND kafka_partition = {partition} AND kafka_offset < {end})"
        for topic, partitions in vector.items()
        for partition, end in partitions.items()
    )


def archived(spark: SparkSession, snapshots: Mapping[str, int], erased: Erased = NOBODY) -> DataFrame:
    """All rows of the archive at the given snapshots (by entity), all topics in one frame.

    Columns: kind, topic, kafka_partition, kafka_offset, append_time, key, service_name, identifier, current, original
    (superset structs). What is of an erased guest is of kind ``erased``, also where it is not rewritten yet.
    """
    superset, frames = in_snake_case(superset_type()), []
    for entity, snapshot in snapshots.items():
        table = spark.read.option("versionAsOf", snapshot).table(archive_name(entity))
        table = without(table, entity, erased)
        frames.append(
            table.select(
                "kind",
                F.lit(topic_of(entity)).alias("topic"),
                "kafka_partition",
                "kafka_offset",
                "append_time",
                "key",
                "service_name",
                "identifier",
                *(as_type(F.col(name), table.schema[name].dataType, superset).alias(name) for name in ENTITY_COLUMNS),
            )
        )
    return reduce(DataFrame.unionByName, frames)


CONTENT = ("key", "service_name", "identifier", "reason", "current", "original", "value")
"""Columns of the archive that an erased record has no longer."""


def of_guests(rows: DataFrame, entity: str, erased: Erased) -> str:
    """Spark SQL over ``rows`` of an entity's archive: those of guests whose erasures are under way, and the bad ones
    that name an erased guest, which are looked for now and named by their places."""
    keys = ", ".join(f"X'{ref.encode().hex()}'" for ref in erased.refs)
    conditions = [f"key IN ({keys})"] if keys else []
    bad = rows.where(F.col("kind") == BAD).select("kafka_partition", "kafka_offset", "key", "value")
    named: dict[int, list[str]] = {}
    for row in bad.mapInArrow(_naming(entity, erased), "kafka_partition int, kafka_offset bigint").collect():
        named.setdefault(row["kafka_partition"], []).append(str(row["kafka_offset"]))
    conditions += [
        f"(kind = '{BAD}' AND kafka_partition = {partition} AND kafka_offset IN ({', '.join(offsets)}))"
        for partition, offsets in sorted(named.items())
    ]
    return " OR ".join(conditions) or "false"


def _naming(entity: str, erased: Erased) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What leaves the places of records that name an erased guest."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            named = [erased.is_named_in(entity, *pair) for pair in pairs]
            yield batch.filter(pa.array(named, pa.bool_())).select(["kafka_partition", "kafka_offset"])

    return run


def without(rows: DataFrame, entity: str, erased: Erased) -> DataFrame:
    """Rows of an entity's archive, with all their columns, as they are once what is under way is done."""
    if not erased.refs:
        return rows
    theirs = F.expr(f"coalesce({of_guests(rows, entity, erased)}, false)")
    columns = [
        F.when(theirs, F.lit(ERASED)).otherwise(F.col(name)).alias(name)
        if name == "kind"
        else F.when(~theirs, F.col(name)).alias(name)
        if name in CONTENT
        else F.col(name)
        for name in rows.columns
    ]
    return rows.select(*columns)


ENTITY_COLUMNS = ("current", "original")

EARLIER_FIELDS = "anabranch.earlier-fields"
"""Property of an archive table: JSON list of what its entity's type was below a position, ``{"below": {partition:
offset}, "type": DDL}``. Rows there have null in fields that came later, whatever their records said."""


def as_archived(spark: SparkSession, entity: str, column: str) -> Column:
    """A column of the entity's type of today with what the archive took up of it in its time, which it tells by
    ``kafka_partition`` and ``kafka_offset``."""
    today, now = in_snake_case(entity_type(entity)), spark.table(archive_name(entity)).schema[column].dataType
    made = as_type(as_type(F.col(column), today, now), now, today)
    for earlier in reversed(earlier_fields(spark, archive_name(entity))):
        then = DataType.fromDDL(earlier["type"])
        below_it = " OR ".join(
            f"(kafka_partition = {partition} AND kafka_offset < {offset})"
            for partition, offset in earlier["below"].items()
        )
        made = F.when(F.expr(below_it), as_type(as_type(made, today, then), then, today)).otherwise(made)
    return made


def earlier_fields(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """``EARLIER_FIELDS`` of a table, the oldest first."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {table}").collect()
    found: list[dict[str, Any]] = json.loads({row["key"]: row["value"] for row in rows}.get(EARLIER_FIELDS, "[]"))
    return found


def as_type(column: Column, has: DataType, wanted: DataType) -> Column:
    """A column of type ``has`` as ``wanted``, at every depth by the names of fields: those that it lacks are null. A
    snapshot has the fields of the time when it was written."""
    if isinstance(has, StructType) and isinstance(wanted, StructType) and not _same(has, wanted):
        own = {field.name: field.dataType for field in has.fields}
        fields = [
            as_type(column[field.name], own[field.name], field.dataType)
            if field.name in own
            else F.lit(None).cast(field.dataType)
            for field in wanted.fields
        ]
        named = (value.alias(field.name) for value, field in zip(fields, wanted.fields, strict=True))
        return F.when(column.isNotNull(), F.struct(*named))
    if isinstance(has, ArrayType) and isinstance(wanted, ArrayType) and not _same(has, wanted):
        return F.transform(column, lambda item: as_type(item, has.elementType, wanted.elementType))
    return column


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()
