"""``archive.<entity>``: one row for each offset of a changelog topic, contiguous from 0 in every partition.

What a partition's archived position is, its own rows say: the end of the last one. There is nothing to get out of step.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from changelog.classify import CHANGE
from changelog.positions import Vector
from changelog.typed import entity_type, in_snake_case, superset_type
from runtime.errors import ContractError
from runtime.settings import ENTITIES, topic_of
from runtime.spark import CATALOG

EMPTY = "empty"
"""Kind of a row that stands for a range of offsets without records (transaction markers), or one accepted as lost."""


def archive_name(entity: str) -> str:
    """``lake.archive.<entity>``."""
    return f"{CATALOG}.archive.{entity}"


def ensure_archive(spark: SparkSession, entity: str, topic_id: str, partitions: int) -> None:
    """Create the table with a first, empty snapshot. A second call changes nothing.

    Raises ContractError if the topic was made anew or has another number of partitions than when the table was made.
    """
    name = archive_name(entity)
    struct = in_snake_case(entity_type(entity)).simpleString()
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.archive")
    spark.sql(
        f"""CREATE TABLE IF NOT EXISTS {name} (
            kafka_partition int NOT NULL, kafka_offset bigint NOT NULL COMMENT 'offset, or first offset of a range',
            last_offset bigint NOT NULL COMMENT 'last offset of a range, else the offset itself',
            kind string NOT NULL COMMENT 'change, duplicate, bad, tombstone or empty', append_time timestamp,
            key binary, service_name string, identifier string, reason string,
            current {struct}, original {struct}, value binary COMMENT 'the record whole, where it is not a change'
        ) USING iceberg PARTITIONED BY (kafka_partition) TBLPROPERTIES (
            'format-version' = '2', 'write.distribution-mode' = 'none', 'write.parquet.compression-codec' = 'zstd',
            'write.metadata.delete-after-commit.enabled' = 'true', 'write.metadata.previous-versions-max' = '50',
            'anabranch.topic-id' = '{topic_id}', 'anabranch.partitions' = '{partitions}')"""
    )
    agreed = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
    found = (topic_id, str(partitions))
    if (agreed["anabranch.topic-id"], agreed["anabranch.partitions"]) != found:
        raise ContractError(
            f"{topic_of(entity)} has id {topic_id} and {partitions} partitions; its archive was made from a topic with "
            f"id {agreed['anabranch.topic-id']} and {agreed['anabranch.partitions']} partitions. An archive belongs to "
            "one topic: restore the topic, or begin a new home and fill its topics by replay"
        )
    if current_snapshot(spark, name) is None:
        spark.table(name).limit(0).writeTo(name).append()


def current_snapshot(spark: SparkSession, table: str) -> int | None:
    """Id of a table's newest snapshot, or None before the first."""
    row = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").first()
    return int(row["snapshot_id"]) if row else None


def positions(spark: SparkSession, snapshots: dict[str, int], partitions: int) -> Vector:
    """The archived position of every topic-partition at the given snapshot of each table: from file statistics.

    A partition without rows stands at 0.
    """
    vector: Vector = {topic_of(entity): dict.fromkeys(range(partitions), 0) for entity in snapshots}
    for entity, snapshot in snapshots.items():
        files = spark.read.option("versionAsOf", snapshot).table(f"{archive_name(entity)}.files")
        ends = files.groupBy("partition.kafka_partition").agg(F.expr("max(readable_metrics.last_offset.upper_bound)"))
        for partition, last in ends.collect():
            vector[topic_of(entity)][int(partition)] = int(last) + 1
    return vector


def changes(spark: SparkSession, snapshots: dict[str, int], lower: Vector, upper: Vector) -> DataFrame:
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
        table = spark.read.option("versionAsOf", snapshot).table(archive_name(entity))
        frames.append(
            table.where(F.col("kind") == CHANGE)
            .where(condition or "false")
            .select(
                "kind",
                F.lit(topic).alias("topic"),
                "kafka_partition",
                "kafka_offset",
                "append_time",
                _as_superset(entity, "current"),
                _as_superset(entity, "original"),
            )
        )
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    return union


def snapshots_now(spark: SparkSession) -> dict[str, int]:
    """The newest snapshot of every archive table that exists, by entity."""
    found = {}
    there = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {CATALOG}.archive").collect()}
    for entity in ENTITIES:
        snapshot = current_snapshot(spark, archive_name(entity)) if entity in there else None
        if snapshot is not None:
            found[entity] = snapshot
    return found


def _as_superset(entity: str, column: str) -> Column:
    own = set(in_snake_case(entity_type(entity)).fieldNames())
    fields = [
        (F.col(f"{column}.{field.name}") if field.name in own else F.lit(None).cast(field.dataType)).alias(field.name)
        for field in in_snake_case(superset_type()).fields
    ]
    return F.when(F.col(column).isNotNull(), F.struct(*fields)).alias(column)
