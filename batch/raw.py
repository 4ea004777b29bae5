"""The log as the raw objects hold it, for a recompute that trusts the columnar archive for nothing but what no object
holds (records that were mended from Kafka, ranges proven empty)."""

import logging
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batch.holes import Stretches, find
from changelog.archive.columnar import archive_name, archived
from changelog.archive.objects import ABOUT, BROKEN, RANGE, list_raw, read_objects
from changelog.archive.ranges import EMPTY
from changelog.classify import CHANGE, IDENTITY
from changelog.duplicates import mark_duplicates
from changelog.erased import NOBODY, Erased
from changelog.positions import Vector
from changelog.typed import typed
from runtime.settings import Settings, topic_of

log = logging.getLogger("raw")


def raw_changes(
    spark: SparkSession,
    settings: Settings,
    snapshots: dict[str, int],
    lower: Vector,
    upper: Vector,
    erased: Erased = NOBODY,
) -> DataFrame:
    """The changes with ``lower`` <= offset < ``upper``, judged and told from duplicates anew, from the raw objects.

    Columns: as :func:`batch.archive_table.changes`. What no object holds is taken from the columnar archive at
    ``snapshots``, and said in the log.
    """
    zero: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in upper.items()}
    read = read_objects(spark, settings.s3, list_raw(settings.s3, upper), zero, erased).persist()
    found: Stretches = {(topic, partition): [] for topic, partitions in upper.items() for partition in partitions}
    for row in read.where(F.col("kind").isin(RANGE, BROKEN)).drop("key", "value").collect():
        if row["kind"] == BROKEN:
            log.warning("%s", row["reason"])
            continue
        found[row["topic"], row["kafka_partition"]].append((row["kafka_offset"], int(row["identifier"])))
    for entity, snapshot in snapshots.items():
        for row in _empty(spark, entity, snapshot).collect():
            found[topic_of(entity), row["kafka_partition"]].append((row["kafka_offset"], row["last_offset"]))
    for (topic, partition), stretches in found.items():
        stretches.append((upper[topic][partition], upper[topic][partition]))  # a gap before the end is a gap as well
    parts = [typed(read.where(~F.col("kind").isin(*ABOUT)))]
    missing = find(found, zero)
    if missing:
        log.info("no object holds %s: taken from the columnar archive", ", ".join(map(str, missing)))
        inside = " OR ".join(
            f"(topic = '{hole.topic}' AND kafka_partition = {hole.partition} AND kafka_offset BETWEEN {hole.first} AND "
            f"{hole.last})"
            for hole in missing
        )
        parts.append(archived(spark, snapshots, erased).where(inside))
    columns = [*IDENTITY, "kind", "kafka_partition", "kafka_offset", "append_time", "current", "original"]
    records = reduce(DataFrame.unionByName, [part.select(*columns) for part in parts])
    wanted = " OR ".join(
        f"(topic = '{topic}' AND kafka_partition = {partition} AND kafka_offset >= {lower[topic].get(partition, 0)} "
        f"AND kafka_offset < {end})"
        for topic, partitions in upper.items()
        for partition, end in partitions.items()
    )
    changes = ["kind", "topic", "kafka_partition", "kafka_offset", "append_time", "current", "original"]
    return mark_duplicates(records).where(F.col("kind") == CHANGE).where(wanted).select(*changes)


def _empty(spark: SparkSession, entity: str, snapshot: int) -> DataFrame:
    """The ranges of offsets that were proven empty, which no object holds: behind each transaction there is one."""
    table = spark.read.option("versionAsOf", snapshot).table(archive_name(entity))
    return table.where(F.col("kind") == EMPTY).select("kafka_partition", "kafka_offset", "last_offset")
