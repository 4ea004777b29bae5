"""Where the histories of a generation begin: filled from the archive before its first epoch, and checked before any
other. Runs in the driver."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changelog.archive.columnar import archive_name, archived, below, newest_snapshots
from changelog.erased import Erased
from changelog.positions import Vector
from runtime.settings import Settings, entity_of
from speed.generation import Generation
from speed.history import SideRecord, Store, check, store
from speed.positions import last_epoch
from views.matching import CLOCK_SLACK, SECOND, Matches, Progress, progress_of, side_record, topics_of


def ready(
    spark: SparkSession, settings: Settings, generation: Generation, views: Sequence[Matches], erased: Erased
) -> None:
    """See to it that the histories of a generation are where its checkpoint is: fill them from the archive before its
    first epoch, check them before any other. A second call changes nothing.

    Raises ContractError if they were lost.
    """
    directory, checkpoint = generation.histories(settings), generation.checkpoint(settings)
    for earlier in directory.parent.glob("[0-9]*"):
        if int(earlier.name) < generation.number:  # it never runs again
            shutil.rmtree(earlier)
    if not any((checkpoint / "offsets").glob("[0-9]*")):
        shutil.rmtree(directory, ignore_errors=True)
        _fill(spark, directory, generation, views, erased)
    done, _ = last_epoch(checkpoint, generation.start)
    for partition in next(iter(generation.start.values())):
        path = directory / str(partition)
        there = Store(path, views)
        check(there, -1 if done is None else done, path)
        there.close()


def _fill(
    spark: SparkSession, directory: Path, generation: Generation, views: Sequence[Matches], erased: Erased
) -> None:
    """Put in what a match after the generation's start can reach, and how far time has come there, as far as it is
    archived: up to where the generation is warm, for the archive knows every copy there and the generation not yet. It
    begins at the archived position or before it, unless Kafka no longer has what lies there: what was lost between the
    two, no history knows, and the archive neither."""
    start = generation.start
    known: Progress = {}
    partitions = sorted({partition for numbers in start.values() for partition in numbers})
    records = _before(spark, generation.warm, views, erased)
    if records is not None:
        (known,) = progress_of(records, below(start))
        kept = (max(view.kept_seconds or 0 for view in views) + CLOCK_SLACK) * SECOND
        oldest = " ".join(
            f"WHEN {partition} THEN {min(view.progress(known, partition) for view in views) - kept}"
            for partition in partitions
        )
        recent = F.expr(f"unix_micros(append_time) >= CASE kafka_partition {oldest} END")
        _put(records.where(recent), directory, views, len(partitions))
        forever = [view for view in views if view.kept_seconds is None]
        if forever:
            _put(records.where(~recent), directory, views, len(partitions), forever)
    for partition in partitions:
        begun = Store(directory / str(partition), views)
        begun.begin(start, known, partition)
        begun.close()


def _before(spark: SparkSession, end: Vector, views: Sequence[Matches], erased: Erased) -> DataFrame | None:
    """The archived records below ``end`` of the topics that views look at; None if there are none."""
    if not any(offset for offsets in end.values() for offset in offsets.values()):
        return None
    entities = [entity_of(topic) for topic in topics_of(views)]
    there = newest_snapshots(spark, [entity for entity in entities if spark.catalog.tableExists(archive_name(entity))])
    return archived(spark, there, erased).where(below(end)) if there else None


def _put(
    records: DataFrame,
    directory: Path,
    views: Sequence[Matches],
    partitions: int,
    only: Sequence[Matches] | None = None,
) -> None:
    """Put records into the stores of ``views``, as far as they are of a side of ``only`` (of all of them)."""
    told = records.select("kafka_partition", F.expr(side_record(only or views)).alias("record"))
    of_a_side = told.where("get_json_object(record, '$.sides[0]') IS NOT NULL")
    of_a_side.repartition(partitions, "kafka_partition").mapInArrow(_filler(directory, views), "n int").collect()


def _filler(
    directory: Path, views: Sequence[Matches]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs: ``kafka_partition``, ``record`` → nothing; they are in the stores then."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            partitions: dict[int, list[SideRecord]] = {}
            for row in batch.to_pylist():
                partitions.setdefault(row["kafka_partition"], []).append(orjson.loads(row["record"]))
            for partition, records in partitions.items():
                store(directory / str(partition), views).fill(records)
        yield from ()

    return run


def known_until(directory: Path, views: Sequence[Matches], checkpoint: Path, generation: Generation) -> datetime:
    """Up to when the log was known by the end of the last epoch that is done: what comes of later ones, and of that
    which a crash interrupted, comes later, as far as clocks of brokers agree."""
    _, position = last_epoch(checkpoint, generation.start)
    times = []
    for partition in next(iter(position.values())):
        there = Store(directory / str(partition), views)
        times += [there.time(topic, position[topic][partition]) for topic in topics_of(views)]
        there.close()
    return datetime.fromtimestamp(max(0.0, min(times) / SECOND - CLOCK_SLACK), UTC)
