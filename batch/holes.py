"""Holes: offsets between the archived position and the newest archived record that no object holds.

A hole is looked up in Kafka. What Kafka answers is taken; a range for which it answers without records is proven empty
(transaction markers leave such ranges); what it no longer has stops the archived position there.
"""

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from changelog.archive.ranges import gaps
from changelog.classify import CLASSIFIED_DDL, FROM_KAFKA, classify
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


Stretches = dict[tuple[str, int], list[tuple[int, int]]]
"""(topic, partition) → gapless stretches of offsets, (first, last) each."""


def find(stretches: Stretches, positions: Vector) -> list[Hole]:
    """What ``stretches`` leave out, from ``positions`` on."""
    return [
        Hole(topic, partition, first, last)
        for (topic, partition), ranges in sorted(stretches.items())
        for first, last in gaps(ranges, positions[topic][partition])
    ]


def stretches_of(records: DataFrame) -> Stretches:
    """The gapless stretches of offsets among ``records`` (topic, kafka_partition, kafka_offset)."""
    order = Window.partitionBy("topic", "kafka_partition").orderBy("kafka_offset")
    found: Stretches = {}
    for row in (
        records.select("topic", "kafka_partition", "kafka_offset", F.row_number().over(order).alias("number"))
        .groupBy("topic", "kafka_partition", F.col("kafka_offset") - F.col("number"))
        .agg(F.min("kafka_offset").alias("first"), F.max("kafka_offset").alias("last"))
        .collect()
    ):
        found.setdefault((row["topic"], row["kafka_partition"]), []).append((row["first"], row["last"]))
    return found


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
            .selectExpr(*FROM_KAFKA)
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
