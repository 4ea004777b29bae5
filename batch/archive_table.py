"""``archive.<entity>``: one row for each offset of a changelog topic, contiguous from 0 in every partition.

What a partition's archived position is, its own rows say: the end of the last one. There is nothing to get out of step.
"""

import json
from datetime import datetime
from functools import reduce

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from changelog.archive.columnar import (
    EARLIER_FIELDS,
    ENTITY_COLUMNS,
    archive_name,
    archived,
    earlier_fields,
    newest_snapshots,
)
from changelog.classify import CHANGE
from changelog.erased import NOBODY, Erased
from changelog.positions import Vector
from changelog.typed import entity_type, in_snake_case
from runtime.errors import ContractError
from runtime.settings import ENTITIES, topic_of
from runtime.spark import CATALOG


def ensure_archives(spark: SparkSession, topic_ids: dict[str, str], partitions: int) -> None:
    """Create the tables that are missing, each with a first, empty snapshot, and add the columns of fields that the
    schemas have since. A second call changes nothing.

    Raises ContractError if a topic was made anew or has another number of partitions than when its table was made, or
    if a field has another type.
    """
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.archive")
    there = _tables(spark)
    for entity in ENTITIES:
        if entity not in there:
            _create(spark, entity, topic_ids[topic_of(entity)], partitions)
        agreed = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {archive_name(entity)}").collect()}
        made_from = (agreed["anabranch.topic-id"], agreed["anabranch.partitions"])
        found = (topic_ids[topic_of(entity)], str(partitions))
        if made_from != found:
            raise ContractError(
                f"{topic_of(entity)} has id {found[0]} and {found[1]} partitions; its archive was made from a topic "
                f"with id {made_from[0]} and {made_from[1]} partitions. An archive belongs to one topic: restore the "
                "topic, or begin a new home and fill its topics by replay"
            )
    for entity in ENTITIES - snapshots_now(spark).keys():
        spark.table(archive_name(entity)).limit(0).writeTo(archive_name(entity)).append()
    for entity in ENTITIES:
        wanted = in_snake_case(entity_type(entity))
        if lacks_fields(spark, archive_name(entity), wanted):
            end = positions(spark, newest_snapshots(spark, [entity]), partitions)[topic_of(entity)]
            add_fields(spark, archive_name(entity), wanted, end)


def _create(spark: SparkSession, entity: str, topic_id: str, partitions: int) -> None:
    struct = in_snake_case(entity_type(entity)).simpleString()
    spark.sql(
        f"""CREATE TABLE IF NOT EXISTS {archive_name(entity)} (
            kafka_partition int NOT NULL, kafka_offset bigint NOT NULL COMMENT 'offset, or first offset of a range',
            last_offset bigint NOT NULL COMMENT 'last offset of a range, else the offset itself',
            kind string NOT NULL COMMENT 'change, duplicate, bad, tombstone, erased or empty', append_time timestamp,
            key binary, service_name string, identifier string, reason string,
            current {struct}, original {struct}, value binary COMMENT 'the record whole, where it is not a change'
        ) USING iceberg PARTITIONED BY (kafka_partition) TBLPROPERTIES (
            'format-version' = '2', 'write.distribution-mode' = 'none', 'write.parquet.compression-codec' = 'zstd',
            'write.metadata.delete-after-commit.enabled' = 'true', 'write.metadata.previous-versions-max' = '50',
            'anabranch.topic-id' = '{topic_id}', 'anabranch.partitions' = '{partitions}')"""
    )


def lacks_fields(spark: SparkSession, table: str, wanted: StructType) -> bool:
    """Whether a column of an entity lacks fields. Raises ContractError if one has another type."""
    has = spark.table(table).schema
    return any(_missing(table, name, has[name].dataType, wanted) for name in ENTITY_COLUMNS)


def add_fields(spark: SparkSession, table: str, wanted: StructType, end: dict[int, int]) -> None:
    """Add to the columns of entities what they lack of ``wanted``, at any depth. Rows below ``end`` have null there,
    and the table says so (``EARLIER_FIELDS``). May be called again after a crash, or beside another one."""
    if any(end.values()):
        then = spark.table(table).schema["current"].dataType.simpleString()
        said = json.dumps([*earlier_fields(spark, table), {"below": end, "type": then}])
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{EARLIER_FIELDS}' = '{said}')")
    for name in ENTITY_COLUMNS:
        for path, type_ in _missing(table, name, spark.table(table).schema[name].dataType, wanted):
            try:
                spark.sql(f"ALTER TABLE {table} ADD COLUMN {path} {type_.simpleString()}")
            except AnalysisException:
                left = _missing(table, name, spark.table(table).schema[name].dataType, wanted)
                if path in dict(left):  # else another one was first
                    raise


def _missing(table: str, path: str, has: DataType, wanted: DataType) -> list[tuple[str, DataType]]:
    """Paths and types of the fields that ``wanted`` has and ``has`` lacks."""
    if isinstance(has, ArrayType) and isinstance(wanted, ArrayType):
        return _missing(table, f"{path}.element", has.elementType, wanted.elementType)
    if isinstance(has, StructType) and isinstance(wanted, StructType):
        own = {field.name: field.dataType for field in has.fields}
        found: list[tuple[str, DataType]] = []
        for field in wanted.fields:
            at = f"{path}.{field.name}"
            known = own.get(field.name)
            found += [(at, field.dataType)] if known is None else _missing(table, at, known, field.dataType)
        return found
    if has.simpleString() != wanted.simpleString():
        raise ContractError(
            f"{table}: {path} is {has.simpleString()}, the schema has {wanted.simpleString()} now. A field keeps its "
            "type: give the new one another name (anabranch schema check)"
        )
    return []


def _tables(spark: SparkSession) -> set[str]:
    return {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {CATALOG}.archive").collect()}


def snapshots_now(spark: SparkSession) -> dict[str, int]:
    """The newest snapshot of every archive table that has one, by entity; empty before the first ingest."""
    if not _exists(spark):
        return {}
    there = _tables(spark)
    return newest_snapshots(spark, [entity for entity in ENTITIES if entity in there])


def _exists(spark: SparkSession) -> bool:
    return "archive" in {row[0] for row in spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()}


def ends(spark: SparkSession, snapshots: dict[str, int]) -> list[Row]:
    """The end of each partition that has rows, at the given snapshots: from file statistics.

    Rows of: entity, partition, last (offset), append_time (ISO 8601 without zone, UTC).
    """
    frames = [
        spark.read.option("versionAsOf", snapshot)
        .table(f"{archive_name(entity)}.files")
        .groupBy(F.lit(entity).alias("entity"), F.col("partition.kafka_partition").alias("partition"))
        .agg(
            F.expr("max(readable_metrics.last_offset.upper_bound) AS last"),
            F.expr("cast(max(readable_metrics.append_time.upper_bound) AS string) AS append_time"),
        )
        for entity, snapshot in snapshots.items()
    ]
    return reduce(DataFrame.unionByName, frames).collect() if frames else []


def positions(spark: SparkSession, snapshots: dict[str, int], partitions: int) -> Vector:
    """The archived position of every topic-partition at the given snapshots. A partition without rows stands at 0."""
    vector: Vector = {topic_of(entity): dict.fromkeys(range(partitions), 0) for entity in snapshots}
    for row in ends(spark, snapshots):
        vector[topic_of(row["entity"])][row["partition"]] = row["last"] + 1
    return vector


def first_after(spark: SparkSession, snapshots: dict[str, int], time: datetime, ends: Vector) -> Vector:
    """The first offset of each partition that was appended at or after ``time``; its end where there is none."""
    vector: Vector = {topic: dict(partitions) for topic, partitions in ends.items()}
    for entity, snapshot in snapshots.items():
        rows = (
            spark.read.option("versionAsOf", snapshot)
            .table(archive_name(entity))
            .where(F.col("append_time") >= F.lit(time))
            .groupBy("kafka_partition")
            .agg(F.min("kafka_offset").alias("first"))
            .collect()
        )
        for row in rows:
            vector[topic_of(entity)][row["kafka_partition"]] = row["first"]
    return vector


def changes(
    spark: SparkSession, snapshots: dict[str, int], lower: Vector, upper: Vector, erased: Erased = NOBODY
) -> DataFrame:
    """The archived changes with ``lower`` <= offset < ``upper``, all topics in one frame.

    Columns: kind, topic, kafka_partition, kafka_offset, append_time, current, original (superset structs).
    """
    frames = []
    for entity, snapshot in snapshots.items():
        topic = topic_of(entity)
        condition = " OR ".join(
            f"(kafka_partition = {partition} AND kafka_offset >= {lower[topic].get(partition, 0)} "
            f"AND kafka_offset < {end})"
            for partition, end in upper[topic].items()
        )
        table = archived(spark, {entity: snapshot}, erased).where(F.col("kind") == CHANGE).where(condition or "false")
        frames.append(table.drop("key", "service_name", "identifier"))
    return reduce(DataFrame.unionByName, frames)
