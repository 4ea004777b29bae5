"""The columnar archive as its readers see it: ``archive.<entity>``, one row for each offset."""

from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

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


def archived(spark: SparkSession, snapshots: Mapping[str, int]) -> DataFrame:
    """All rows of the archive at the given snapshots (by entity), all topics in one frame.

    Columns: kind, topic, kafka_partition, kafka_offset, append_time, key, service_name, identifier, current, original
    (superset structs).
    """
    frames = [
        spark.read.option("versionAsOf", snapshot)
        .table(archive_name(entity))
        .select(
            "kind",
            F.lit(topic_of(entity)).alias("topic"),
            "kafka_partition",
            "kafka_offset",
            "append_time",
            "key",
            "service_name",
            "identifier",
            _as_superset(entity, "current"),
            _as_superset(entity, "original"),
        )
        for entity, snapshot in snapshots.items()
    ]
    return reduce(DataFrame.unionByName, frames)


def _as_superset(entity: str, column: str) -> Column:
    own = set(in_snake_case(entity_type(entity)).fieldNames())
    fields = [
        (F.col(f"{column}.{field.name}") if field.name in own else F.lit(None).cast(field.dataType)).alias(field.name)
        for field in in_snake_case(superset_type()).fields
    ]
    return F.when(F.col(column).isNotNull(), F.struct(*fields)).alias(column)
