"""Holes: offsets between the archived position and the newest archived record that no object holds.

A hole is looked up in Kafka. What Kafka answers is taken; a range for which it answers without records is proven empty
(transaction markers leave such ranges); what it no longer has stops the archived position there.
"""

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from changelog.classify import CLASSIFIED_DDL, classify
from changelog.positions import Vector
from runtime.settings import Settings


@dataclass(frozen=True)
class Hole:
    """Offsets ``first`` … ``last`` (both included) of a topic-partition."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.first}-{self.last}"


def find(records: DataFrame, positions: Vector) -> list[Hole]:
    """Holes among ``records`` (topic, kafka_partition, kafka_offset), counted from ``positions`` on."""
    starts = " UNION ALL ".join(
        f"SELECT '{topic}' AS topic, {partition} AS kafka_partition, {position - 1}L AS kafka_offset"
        for topic, partitions in positions.items()
        for partition, position in partitions.items()
    )
    offsets = records.select("topic", "kafka_partition", "kafka_offset").union(records.sparkSession.sql(starts))
    order = Window.partitionBy("topic", "kafka_partition").orderBy("kafka_offset")
    gaps = offsets.withColumn("before", F.lag("kafka_offset").over(order)).where("kafka_offset - before > 1")
    return [
        Hole(row["topic"], row["kafka_partition"], row["before"] + 1, row["kafka_offset"] - 1)
        for row in gaps.orderBy("topic", "kafka_partition", "kafka_offset").collect()
    ]


def look_up(spark: SparkSession, settings: Settings, holes: list[Hole], log_starts: Vector) -> DataFrame | None:
    """What Kafka still has of ``holes``, classified (``CLASSIFIED_DDL``); None if it has none of their ranges."""
    frame: DataFrame | None = None
    for hole in holes:
        first = max(hole.first, log_starts[hole.topic][hole.partition])
        if first > hole.last:
            continue
        kafka = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", settings.kafka.bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("assign", json.dumps({hole.topic: [hole.partition]}))
            .option("startingOffsets", json.dumps({hole.topic: {str(hole.partition): first}}))
            .option("endingOffsets", json.dumps({hole.topic: {str(hole.partition): hole.last + 1}}))
            .load()
            .selectExpr(
                "topic",
                "partition AS kafka_partition",
                "offset AS kafka_offset",
                "timestamp AS append_time",
                "key",
                "value",
            )
            .mapInArrow(classify, CLASSIFIED_DDL)
        )
        frame = kafka if frame is None else frame.unionByName(kafka)
    return frame


def lost(holes: list[Hole], log_starts: Vector) -> list[Hole]:
    """The parts of ``holes`` that lie before the beginning of what Kafka still has."""
    return [
        Hole(hole.topic, hole.partition, hole.first, min(hole.last, start - 1))
        for hole in holes
        if hole.first < (start := log_starts[hole.topic][hole.partition])
    ]
