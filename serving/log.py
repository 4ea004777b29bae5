"""The log read anew, independent of the tables: from Kafka, and below what Kafka still has from the raw objects."""

import json
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changelog.archive.objects import ABOUT, list_raw, read_objects
from changelog.classify import CHANGE, CLASSIFIED_DDL, FROM_KAFKA, classifier
from changelog.duplicates import mark_duplicates
from changelog.erased import Erased
from changelog.positions import Vector
from changelog.topics import start_offsets
from changelog.typed import typed
from runtime.settings import ObjectStore, Settings


def log_records(spark: SparkSession, settings: Settings, cut: Vector, erased: Erased) -> DataFrame:
    """Every record of the log below ``cut``, once, typed, duplicates marked over the whole log (lowest offset first).

    Columns: those of ``CLASSIFIED_DDL``, ``current``, ``original``; ``value`` is null for changes.
    """
    starts = start_offsets(settings)
    parts = [_from_kafka(spark, settings, starts, cut, erased)]
    if any(offset for partitions in starts.values() for offset in partitions.values()):
        parts.append(_from_objects(spark, settings.s3, starts, cut, erased))
    records = reduce(DataFrame.unionByName, parts)
    # the archive format cannot tell an empty key or value from none
    return (
        typed(mark_duplicates(records))
        .withColumn("key", F.when(F.length("key") > 0, F.col("key")))
        .withColumn("value", F.when((F.col("kind") != CHANGE) & (F.length("value") > 0), F.col("value")))
    )


def _from_kafka(spark: SparkSession, settings: Settings, starts: Vector, cut: Vector, erased: Erased) -> DataFrame:
    ends = {
        topic: {str(p): max(offset, starts[topic][p]) for p, offset in partitions.items()}
        for topic, partitions in cut.items()
    }
    kafka = (
        spark.read.format("kafka")
        .options(**settings.kafka.spark())
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps({topic: sorted(partitions) for topic, partitions in cut.items()}))
        .option(
            "startingOffsets",
            json.dumps({topic: {str(p): starts[topic][p] for p in partitions} for topic, partitions in cut.items()}),
        )
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
    return kafka.selectExpr(*FROM_KAFKA).mapInArrow(classifier(erased), CLASSIFIED_DDL)


def _from_objects(spark: SparkSession, s3: ObjectStore, starts: Vector, cut: Vector, erased: Erased) -> DataFrame:
    """Records below Kafka's beginning, each offset once. What a damaged object held is missing here."""
    beginning: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in cut.items()}
    below = " OR ".join(
        f"(topic = '{topic}' AND kafka_partition = {partition} AND kafka_offset < {min(end, starts[topic][partition])})"
        for topic, partitions in cut.items()
        for partition, end in partitions.items()
    )
    read = read_objects(spark, s3, list_raw(s3, cut), beginning, erased)
    return read.where(~F.col("kind").isin(*ABOUT)).where(below).drop("object", "etag")
