"""The log read anew, independent of the tables: from Kafka, and below what Kafka still has from the raw objects."""

import json
from collections.abc import Iterable, Iterator
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from changelog.archive.secor import read_object
from changelog.archive.store import ArchiveStore
from changelog.classify import CHANGE, CLASSIFIED_DDL, DUPLICATE, RECORD, RECORD_DDL, classify
from changelog.positions import Vector
from changelog.topics import start_offsets
from changelog.typed import typed
from runtime.settings import ObjectStore, Settings


def log_records(spark: SparkSession, settings: Settings, cut: Vector) -> DataFrame:
    """Every record of the log below ``cut``, once, typed, duplicates marked over the whole log (lowest offset first).

    Columns: those of ``CLASSIFIED_DDL``, ``current``, ``original``; ``value`` is null for changes.
    """
    starts = start_offsets(settings)
    parts = [_from_kafka(spark, settings, starts, cut)]
    if any(offset for partitions in starts.values() for offset in partitions.values()):
        parts.append(_from_objects(spark, settings.s3, starts, cut))
    records = reduce(DataFrame.unionByName, parts)
    copies = Window.partitionBy("topic", "key", "service_name", "identifier", "kind").orderBy("kafka_offset")
    marked = records.withColumn(
        "kind",
        F.when((F.col("kind") == CHANGE) & (F.row_number().over(copies) > 1), DUPLICATE).otherwise(F.col("kind")),
    )
    # the archive format cannot tell an empty key or value from none
    return (
        typed(marked)
        .withColumn("key", F.when(F.length("key") > 0, F.col("key")))
        .withColumn("value", F.when((F.col("kind") != CHANGE) & (F.length("value") > 0), F.col("value")))
    )


def _from_kafka(spark: SparkSession, settings: Settings, starts: Vector, cut: Vector) -> DataFrame:
    ends = {
        topic: {str(p): max(offset, starts[topic][p]) for p, offset in partitions.items()}
        for topic, partitions in cut.items()
    }
    kafka = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", settings.kafka.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps({topic: sorted(partitions) for topic, partitions in cut.items()}))
        .option(
            "startingOffsets",
            json.dumps({topic: {str(p): starts[topic][p] for p in partitions} for topic, partitions in cut.items()}),
        )
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
    return kafka.selectExpr(
        "topic", "partition AS kafka_partition", "offset AS kafka_offset", "timestamp AS append_time", "key", "value"
    ).mapInArrow(classify, CLASSIFIED_DDL)


def _from_objects(spark: SparkSession, s3: ObjectStore, starts: Vector, cut: Vector) -> DataFrame:
    """Records below Kafka's beginning, each offset once."""
    store = ArchiveStore(s3)
    objects = [
        (topic, item.partition, item.key)
        for topic, partitions in cut.items()
        for item in store.list_objects(topic)
        if item.partition in partitions
    ]
    frame = spark.createDataFrame(objects, "topic string, kafka_partition int, object string")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archive = ArchiveStore(s3)
        for batch in batches:
            for row in batch.to_pylist():
                topic, partition = row["topic"], row["kafka_partition"]
                end = min(starts[topic][partition], cut[topic][partition])
                rows = [
                    {
                        "topic": topic,
                        "kafka_partition": partition,
                        "kafka_offset": record.offset,
                        "append_time": record.timestamp_ms * 1000,
                        "key": record.key,
                        "value": record.value or None,
                    }
                    for record in read_object(archive.get(row["object"]), row["object"])
                    if record.offset < end
                ]
                yield pa.RecordBatch.from_pylist(rows, schema=RECORD)

    records = frame.repartition(spark.sparkContext.defaultParallelism).mapInArrow(read, RECORD_DDL)
    return records.dropDuplicates(["topic", "kafka_partition", "kafka_offset"]).mapInArrow(classify, CLASSIFIED_DDL)
