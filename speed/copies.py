"""What the stores of identities lack and Kafka no longer has: filled from the archive before the stream is started, so
that copies of records which only the archive has are recognised within the horizon. Runs in the driver.

What Kafka still has the workers read there themselves (``changelog.refill``).
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from changelog.archive.columnar import archived, newest_snapshots
from changelog.classify import CHANGE, DUPLICATE
from changelog.erased import Erased
from changelog.identities import SLACK_SECONDS, Identities, identities
from changelog.positions import Vector
from changelog.reader import Reader
from changelog.refill import rows_of
from changelog.stores import DAMAGE, is_whole
from changelog.topics import end_offsets, offsets_at
from runtime.errors import RetentionError, TransientError
from runtime.ops import Connection
from runtime.settings import Settings, entity_of
from speed.generation import Generation, check_archive_reaches


class Lack(NamedTuple):
    """What a store does not know and Kafka neither: records before offset ``start``, appended at ``since`` or later,
    that later ones may be copies of."""

    topic: str
    partition: int
    start: int
    since: datetime


def fill_identities(
    spark: SparkSession,
    settings: Settings,
    ops: Connection,
    generation: Generation,
    position: Vector,
    starts: Vector,
    erased: Erased,
) -> int:
    """Show the stores of ``generation``, which goes on at ``position``, what Kafka, whose log begins at ``starts``, no
    longer has of the horizon before, but for guests who are ``erased``. Returns how many stores lacked something; a
    second call finds none.

    A store that is damaged is put away: the log makes it anew. Raises what :func:`check_archive_reaches` raises, and
    TransientError if Kafka does not answer.
    """
    directory = generation.identities(settings)
    lacks = [
        lack
        for topic, partitions in position.items()
        for partition, offset in partitions.items()
        if starts[topic][partition] > _known(directory / f"{topic}-{partition}", generation.horizon_seconds)
        and (lack := _lack(settings, generation, topic, partition, offset, starts[topic][partition]))
    ]
    if not lacks:
        return 0
    wanted: Vector = {}
    for lack in lacks:
        wanted.setdefault(lack.topic, {})[lack.partition] = lack.start
    check_archive_reaches(ops, wanted)
    conditions = (
        f"(topic = '{lack.topic}' AND kafka_partition = {lack.partition} AND kafka_offset < {lack.start} AND "
        f"append_time >= TIMESTAMP '{lack.since:%Y-%m-%d %H:%M:%S.%f}')"
        for lack in lacks
    )
    snapshots = newest_snapshots(spark, [entity_of(topic) for topic in wanted])
    (
        archived(spark, snapshots, erased)
        .where(F.col("kind").isin(CHANGE, DUPLICATE))
        .where(" OR ".join(conditions))
        .select("topic", "kafka_partition", "kafka_offset", "append_time", "key", "service_name", "identifier")
        .repartition("topic", "kafka_partition")
        .sortWithinPartitions("topic", "kafka_partition", "kafka_offset")
        .mapInArrow(_marker(directory, generation.horizon_seconds), "n int")
        .collect()
    )
    for lack in lacks:
        store = Identities(directory / f"{lack.topic}-{lack.partition}", generation.horizon_seconds)
        store.mark([], lack.start)
        store.close()
    return len(lacks)


def _known(path: Path, horizon_seconds: int) -> int:
    """Up to which offset the store at ``path`` knows the log. One that is damaged is taken away."""
    if not path.exists():
        return 0
    if is_whole(path):
        with suppress(*DAMAGE), closing(Identities(path, horizon_seconds)) as store:
            return store.next() or 0
    shutil.rmtree(path)
    return 0


def _lack(
    settings: Settings, generation: Generation, topic: str, partition: int, offset: int, start: int
) -> Lack | None:
    """What a store lacks that knows nothing before ``start``, where Kafka's log begins; None if Kafka has all of the
    horizon before the next record."""
    horizon = timedelta(seconds=generation.horizon_seconds + SLACK_SECONDS)
    since = _next_time(settings, topic, partition, offset) - horizon
    if offsets_at(settings.kafka, topic, partition, since) > start:
        return None
    return Lack(topic, partition, start, since)


def _next_time(settings: Settings, topic: str, partition: int, offset: int) -> datetime:
    """When the first record at or after ``offset`` was appended; now, if there is none yet."""
    end = {topic: {partition: end_offsets(settings, [topic])[topic][partition]}}
    try:
        with Reader(settings, {topic: {partition: offset}}, wait_ms=50) as reader:
            for entries in reader.read_to(end):
                return datetime.fromtimestamp(entries[0].time / 1000, UTC)
    except RetentionError as error:  # it was there a moment ago
        raise TransientError(str(error)) from error
    return datetime.now(UTC)


def _marker(directory: Path, horizon_seconds: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs: records with their identities, by place and offset → nothing; the stores know them
    then."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places: dict[tuple[str, int], list[int]] = {}
            for number, row in enumerate(batch.select(["topic", "kafka_partition"]).to_pylist()):
                places.setdefault((row["topic"], row["kafka_partition"]), []).append(number)
            rows = rows_of(batch)
            for (topic, partition), numbers in places.items():
                store = identities(directory / f"{topic}-{partition}", horizon_seconds)
                store.mark([rows[number] for number in numbers], rows[numbers[-1]][0] + 1)
        yield from ()

    return run
