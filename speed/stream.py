"""From Kafka to contributions: the streaming half of an epoch."""

import json

from pyspark.sql import DataFrame, SparkSession

from changelog.classify import CLASSIFIED_DDL, FROM_KAFKA
from changelog.erased import Erased
from changelog.positions import to_json
from changelog.typed import typed
from runtime.settings import Settings
from speed.duplicates import judge
from speed.generation import Generation
from views.fold import Fold, weighted


def records(spark: SparkSession, settings: Settings, generation: Generation) -> DataFrame:
    """The changelog as a stream of ``RECORD_DDL``, committed records only, from the generation's start on.

    The topic-partitions are assigned by name, so that a partition added later is never taken up silently.
    """
    assigned = {topic: sorted(partitions) for topic, partitions in generation.start.items()}
    kafka = (
        spark.readStream.format("kafka")
        .options(**settings.kafka.spark())
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", "5")  # a fetch that waits for more holds up the question where the log ends
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(to_json(generation.start)))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", settings.speed.max_offsets_per_trigger)
    )
    return kafka.load().selectExpr(*FROM_KAFKA)


def contributions(
    spark: SparkSession, settings: Settings, generation: Generation, fold: Fold, erased: Erased
) -> DataFrame:
    """The whole stream: what every new record contributes to the fold. No state of Spark's, no watermark.

    All partitions are read in as many tasks as there are cores; copies of a record are in one partition, in order, so
    the lowest offset survives.
    """
    told = judge(settings.kafka, generation.identities(settings), generation.horizon_seconds, erased)
    tasks = spark.sparkContext.defaultParallelism
    classified = records(spark, settings, generation).coalesce(tasks).mapInArrow(told, CLASSIFIED_DDL)
    kept = ("service_name", "reason", "key", "value", "current", "original")
    return fold.contributed(weighted(typed(classified), keep=kept))
