"""Holes: offsets between the archived position and the newest archived record that no object holds, or the place up to
which the archiver has committed that all is stored.

A hole is looked up in Kafka. What Kafka answers is taken, and where an object had it once, it is stored anew; a range
for which Kafka answers without records is proven empty (markers of transactions and aborted records leave such ranges).
Of what Kafka no longer has, the archiver's notes say whether it was empty; else it stops the archived position there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from batch.restore import WAIT_MS, archived, restore
from changelog.archive.ranges import Hole, gaps
from changelog.archive.store import ArchiveStore
from changelog.classify import CLASSIFIED_DDL, RECORD, classify_batch
from changelog.erased import Erased
from changelog.positions import Vector
from changelog.reader import Entry, Reader
from changelog.topics import start_offsets
from runtime.settings import Settings

NEAR = 1_000
"""Offsets between two holes that are read faster than the reader is moved on: a log with transactions has a hole of one
offset behind each."""

TASKS = 4

Stretches = dict[tuple[str, int], list[tuple[int, int]]]
"""(topic, partition) → gapless stretches of offsets, (first, last) each."""


def find(stretches: Stretches, positions: Vector) -> list[Hole]:
    """What ``stretches`` leave out, from ``positions`` on."""
    return [
        Hole(topic, partition, first, last)
        for (topic, partition), ranges in sorted(stretches.items())
        for first, last in gaps(ranges, positions[topic][partition])
    ]


def ends_of(stretches: Stretches, positions: Vector) -> Vector:
    """One past the last offset of ``stretches`` and ``positions``, of every topic-partition."""
    reached: Vector = {topic: dict(partitions) for topic, partitions in positions.items()}
    for (topic, partition), ranges in stretches.items():
        reached[topic][partition] = max(reached[topic][partition], *(last + 1 for _, last in ranges))
    return reached


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


def look_up(
    spark: SparkSession, settings: Settings, holes: list[Hole], log_starts: Vector, stored: Vector, erased: Erased
) -> DataFrame | None:
    """What Kafka still has of ``holes``, classified (``CLASSIFIED_DDL``); None if it has none of their ranges.

    Below ``stored`` all was in objects: what is missing there will come from nobody else, and is put into objects again
    as it is read. Read a second time, it is there, or is there twice: the raw archive holds it at least once.
    """
    there = [
        Hole(hole.topic, hole.partition, first, hole.last)
        for hole in holes
        if (first := max(hole.first, log_starts[hole.topic][hole.partition])) <= hole.last
    ]
    work = read_together(there)
    # workers are told what they need, and no other secret
    told = Settings.model_construct(kafka=settings.kafka, s3=settings.s3)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from _read(told, work[number], stored, erased)

    if not work:
        return None
    return spark.range(0, len(work), 1, min(len(work), TASKS)).mapInArrow(read, CLASSIFIED_DDL)


def read_together(holes: Iterable[Hole]) -> list[list[Hole]]:
    """Holes in groups that are read in one go: of one topic-partition, in order, each near the one before."""
    groups: list[list[Hole]] = []
    for hole in sorted(holes, key=lambda hole: (hole.topic, hole.partition, hole.first)):
        last = groups[-1][-1] if groups else None
        if last and (last.topic, last.partition) == (hole.topic, hole.partition) and hole.first - last.last <= NEAR:
            groups[-1].append(hole)
        else:
            groups.append([hole])
    return groups


def record_of(entry: Entry) -> dict[str, object]:
    """A record (``RECORD``) as ingest finds it in an object, which does not tell an empty key or value from none."""
    return {
        "topic": entry.topic,
        "kafka_partition": entry.partition,
        "kafka_offset": entry.offset,
        "append_time": entry.time * 1000,
        "key": entry.key or None,
        "value": entry.value or None,
    }


def _read(settings: Settings, holes: list[Hole], stored: Vector, erased: Erased) -> Iterator[pa.RecordBatch]:
    """The committed records in one of the groups of :func:`read_together`, classified."""
    topic, partition, end = holes[0].topic, holes[0].partition, holes[-1].last + 1
    firsts, archive = [hole.first for hole in holes], ArchiveStore(settings.s3)
    restorable = stored.get(topic, {}).get(partition, 0)

    def hole_of(entry: Entry) -> Hole:
        return holes[bisect_right(firsts, entry.offset) - 1]

    with Reader(settings, {topic: {partition: firsts[0]}}, WAIT_MS) as reader:
        for entries in reader.read_to({topic: {partition: end}}):
            inside = [entry for entry in entries if entry.offset <= hole_of(entry).last]
            for _, gone in groupby((entry for entry in inside if entry.offset < restorable), hole_of):
                restore(archive, topic, partition, map(archived, gone), erased)  # an object holds no other's offsets
            if inside:
                records = [record_of(entry) for entry in inside]
                yield classify_batch(pa.RecordBatch.from_pylist(records, schema=RECORD), erased)


def unproven(settings: Settings, holes: Sequence[Hole]) -> list[Hole]:
    """The parts of ``holes`` of which the archiver has not noted that they hold no record, in order."""
    found: list[Hole] = []
    places: dict[tuple[str, int], list[Hole]] = {}
    for hole in holes:
        places.setdefault((hole.topic, hole.partition), []).append(hole)
    for (topic, partition), parts in places.items():
        first, last = min(hole.first for hole in parts), max(hole.last for hole in parts)
        noted = ArchiveStore(settings.s3).empty_ranges(topic, partition, first, last)
        unnoted = [Hole(topic, partition, *stretch) for stretch in gaps([*noted, (last + 1, last + 1)], first)]
        found += [
            Hole(topic, partition, max(hole.first, left.first), min(hole.last, left.last))
            for hole in sorted(parts, key=lambda hole: hole.first)
            for left in overlapping(unnoted, hole)
        ]
    return found


def overlapping(holes: Sequence[Hole], hole: Hole) -> list[Hole]:
    """Those of ``holes``, which are of one topic-partition, in order, and apart, that share an offset with ``hole``."""
    low = bisect_left(holes, hole.first, key=lambda other: other.last)
    high = bisect_right(holes, hole.last, key=lambda other: other.first)
    return list(holes[low:high])


def tails(settings: Settings, reached: Vector, ends: Vector) -> list[Hole]:
    """What lies between ``reached`` and the next committed record, or the end of the log, of each topic-partition that
    is not at its end: nothing, as Kafka says now and will say for ever. So markers and aborted records at the end of a
    partition do not hold up the boundary.

    ``ends``: up to where the log can be read. Of what Kafka has let go of the archiver's notes say whether it was
    nothing; where they do not, the partition is left out.
    """
    behind = [
        (topic, partition, offset)
        for topic, partitions in reached.items()
        for partition, offset in partitions.items()
        if offset < ends[topic][partition]
    ]
    if not behind:
        return []
    starts = start_offsets(settings)
    asked: Vector = {}
    for topic, partition, offset in behind:
        start = starts[topic][partition]
        if offset >= start or not unproven(settings, [Hole(topic, partition, offset, start - 1)]):
            asked.setdefault(topic, {})[partition] = max(offset, start)
    return [
        Hole(topic, partition, reached[topic][partition], offset - 1)
        for topic, partitions in next_committed(settings, asked, ends).items()
        for partition, offset in partitions.items()
        if offset > reached[topic][partition]
    ]


def withheld(settings: Settings, reached: Vector, stored: Vector) -> list[tuple[tuple[str, int], int]]:
    """Topic-partitions whose objects give records up to ``reached`` only, although records up to ``stored`` were put
    into objects: the last ones are gone or damaged, and no later object shows the gap. With where they should end.

    One of which Kafka says that there is no record is left out; so is one of which the archiver has noted it.
    """
    behind: Vector = {}
    for topic, partitions in stored.items():
        for partition, end in partitions.items():
            if reached[topic][partition] < end:
                behind.setdefault(topic, {})[partition] = reached[topic][partition]
    if not behind:
        return []
    starts = start_offsets(settings)
    asked = {
        topic: {p: max(at, starts[topic][p]) for p, at in partitions.items()} for topic, partitions in behind.items()
    }
    following = next_committed(settings, asked, stored)
    return [
        ((topic, partition), stored[topic][partition])
        for topic, partitions in behind.items()
        for partition, at in partitions.items()
        if following[topic][partition] < stored[topic][partition]
        or (
            at < starts[topic][partition]
            and unproven(settings, [Hole(topic, partition, at, starts[topic][partition] - 1)])
        )
    ]


def next_committed(settings: Settings, positions: Vector, ends: Vector) -> Vector:
    """For each topic-partition the offset of the first committed record at or after its position, or where there is
    none, its end in ``ends`` or further."""
    found: Vector = {topic: {} for topic in positions}
    waiting = {(topic, partition) for topic, partitions in positions.items() for partition in partitions}
    if not waiting:
        return found
    wanted = {topic: {p: ends[topic][p] for p in partitions} for topic, partitions in positions.items()}
    with Reader(settings, positions, WAIT_MS) as reader:
        for entries in reader.read_to(wanted):
            for entry in entries:
                found[entry.topic].setdefault(entry.partition, entry.offset)
            waiting -= {(topic, partition) for topic, partitions in found.items() for partition in partitions}
            if not waiting:
                return found
        for topic, partition in waiting:
            found[topic][partition] = reader.positions[topic][partition]
    return found


def lost(holes: list[Hole], log_starts: Vector) -> list[Hole]:
    """The parts of ``holes`` that lie before the beginning of what Kafka still has."""
    return [
        Hole(hole.topic, hole.partition, hole.first, min(hole.last, start - 1))
        for hole in holes
        if hole.first < (start := log_starts[hole.topic][hole.partition])
    ]
