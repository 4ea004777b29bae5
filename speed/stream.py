"""From Kafka to contributions: the streaming half of an epoch. No watermark on records."""

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changelog.classify import CHANGE, CLASSIFIED_DDL, FROM_KAFKA, classify_and_count
from changelog.positions import to_json
from changelog.typed import typed
from runtime.settings import Settings
from speed.generation import Generation
from views.fold import Fold, weighted

IDENTITY = ["topic", "key", "service_name", "identity"]


def records(spark: SparkSession, settings: Settings, generation: Generation) -> DataFrame:
    """The changelog as a stream of ``RECORD_DDL``, committed records only, from the generation's start on.

    The topic-partitions are assigned by name, so that a partition added later is never taken up silently.
    """
    assigned = {topic: sorted(partitions) for topic, partitions in generation.start.items()}
    kafka = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(to_json(generation.start)))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", settings.speed.max_offsets_per_trigger)
    )
    return kafka.load().selectExpr(*FROM_KAFKA)


def without_duplicates(classified: DataFrame, horizon_seconds: int) -> DataFrame:
    """Drop changes whose (topic, key, service, identifier) came before within the horizon.

    The watermark is the epoch's own time, which Spark keeps in its offset log: a replayed epoch sees the same, and no
    record, however late or far in the future, can lose another. What is not a change has an identity of its own.
    """
    own = F.concat_ws(":", "kind", "kafka_partition", "kafka_offset", "reason")
    return (
        classified.withColumn("identity", F.when(F.col("kind") == CHANGE, F.col("identifier")).otherwise(own))
        .withColumn("epoch_time", F.current_timestamp())
        .withWatermark("epoch_time", f"{horizon_seconds} seconds")
        .dropDuplicatesWithinWatermark(IDENTITY)
    )


def contributions(spark: SparkSession, settings: Settings, generation: Generation, fold: Fold) -> DataFrame:
    """The whole stream: contributions of every new record to every view and to the journal.

    All partitions are read in as many tasks as there are cores; copies of a record are in one partition, in order, so
    the lowest offset survives.
    """
    tasks = spark.sparkContext.defaultParallelism
    classified = records(spark, settings, generation).coalesce(tasks).mapInArrow(classify_and_count, CLASSIFIED_DDL)
    survivors = typed(without_duplicates(classified, generation.horizon_seconds))
    return fold.contributed(weighted(survivors, keep=("reason", "key", "value", "identifier")))
