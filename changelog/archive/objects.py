"""Raw archive objects as records, for ingest and for verify. Runs in Spark's Python workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError
from pyspark.sql import DataFrame, SparkSession

from changelog.archive.ranges import Ranges
from changelog.archive.rewrite import is_erased_in_place, is_of
from changelog.archive.secor import ArchivedRecord, read_object
from changelog.archive.store import ArchiveStore
from changelog.classify import CLASSIFIED, CLASSIFIED_DDL, ERASED, RECORD, classify_batch
from changelog.erased import NOBODY, Erased
from changelog.positions import Vector
from runtime.errors import ArchiveError
from runtime.settings import ObjectStore, entity_of

OBJECT, BROKEN, RANGE, NAMING = "object", "broken", "range", "naming"
"""Kinds of the rows about what was read: an object that was read whole (``kafka_offset`` its last offset,
``identifier`` its number of records), one that could not be (``reason``), and a range of offsets that the records of a
topic-partition cover without a gap (``kafka_offset`` its first, ``identifier`` its last), and an object that has
records of erased guests."""

ABOUT = (OBJECT, BROKEN, RANGE, NAMING)

READ_DDL = CLASSIFIED_DDL + ", object string, etag string"
_READ = pa.schema([*CLASSIFIED, pa.field("object", pa.string()), pa.field("etag", pa.string())])
_ROWS = 20_000


class RawObject(NamedTuple):
    """An object to be read, as the listing named it. ``etag`` changes when its bytes do."""

    topic: str
    partition: int
    key: str
    etag: str


def list_raw(store: ObjectStore, partitions: Vector) -> list[RawObject]:
    """All objects of the topic-partitions of a vector, whatever its offsets."""
    archive = ArchiveStore(store)
    return [
        RawObject(topic, item.partition, item.key, item.etag)
        for topic, wanted in partitions.items()
        for item in archive.list_objects(topic)
        if item.partition in wanted
    ]


def read_objects(
    spark: SparkSession, store: ObjectStore, objects: list[RawObject], positions: Vector, erased: Erased = NOBODY
) -> DataFrame:
    """The classified records of raw objects at or after ``positions``, each offset once, and rows about the reading.

    Columns: ``READ_DDL``. One task reads all objects of a topic-partition, in the order of their names; a record that
    two objects hold is taken from the first. An empty or damaged object gives the records before the damage and a row
    of kind ``broken``: what is missing shows as a gap between ranges. An object that changed since it was listed fails
    the job: a second look has to be a second listing.
    """
    groups: dict[tuple[str, int], list[RawObject]] = {}
    for item in objects:
        groups.setdefault((item.topic, item.partition), []).append(item)
    work = list(groups.values())

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archive = ArchiveStore(store)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                group = work[number]
                yield from _topic_partition(archive, group, positions[group[0].topic][group[0].partition], erased)

    return spark.range(0, len(work), 1, max(1, len(work))).mapInArrow(read, READ_DDL)


@dataclass
class _Buffer:
    """Records on their way into one batch."""

    topic: str
    partition: int
    erased: Erased
    records: list[ArchivedRecord] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    naming: set[str] = field(default_factory=set)

    def add(self, name: str, record: ArchivedRecord) -> None:
        self.names.append(name)
        self.records.append(record)

    def batch(self) -> pa.RecordBatch:
        """The buffered records, classified; the buffer is empty afterwards. ``naming``: objects with erased guests."""
        rows = len(self.records)
        offsets, times, keys, values = zip(*self.records, strict=True)
        raw = pa.RecordBatch.from_arrays(
            [
                pa.array([self.topic] * rows, pa.string()),
                pa.array([self.partition] * rows, pa.int32()),
                pa.array(offsets, pa.int64()),
                pa.array(times, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
                pa.array(keys, pa.binary()),
                pa.array([value or None for value in values], pa.binary()),
            ],
            schema=RECORD,
        )
        classified, nothing = classify_batch(raw, self.erased), pa.nulls(rows, pa.string())
        if self.erased:
            kinds = classified.column("kind").to_pylist()
            for name, record, kind in zip(self.names, self.records, kinds, strict=True):
                if kind == ERASED and not is_erased_in_place(record):
                    self.naming.add(name)
        self.names.clear()
        self.records.clear()
        return pa.RecordBatch.from_arrays([*classified.columns, nothing, nothing], schema=_READ)


def _topic_partition(
    archive: ArchiveStore, objects: list[RawObject], position: int, erased: Erased
) -> Iterator[pa.RecordBatch]:
    topic, partition = objects[0].topic, objects[0].partition
    buffer, seen, about = _Buffer(topic, partition, erased), Ranges(), []
    place = {"topic": topic, "kafka_partition": partition}
    for item in sorted(objects, key=lambda item: item.key):
        last, records = -1, 0
        row = {**place, "object": item.key, "etag": item.etag}
        try:
            for record in read_object(archive.get(item.key, item.etag), item.key):
                records += 1
                last = max(last, record.offset)
                if record.offset >= position and seen.add(record.offset):
                    buffer.add(item.key, record)
                    if len(buffer.records) == _ROWS:
                        yield buffer.batch()
                elif erased and is_of(record, entity_of(topic), erased):
                    buffer.naming.add(item.key)
            about.append({**row, "kind": OBJECT, "kafka_offset": last, "identifier": str(records)})
        except (ArchiveError, BotoCoreError, ClientError) as error:
            if not isinstance(error, ArchiveError):
                archive.look()  # a store that is away fails the job: this is about one object of one that answers
            about.append({**row, "kind": BROKEN, "kafka_offset": last, "reason": str(error)})
    if buffer.records:
        yield buffer.batch()
    for first, last in seen.ranges:
        about.append({**place, "kind": RANGE, "kafka_offset": first, "identifier": str(last)})
    about += [{**place, "object": name, "kind": NAMING} for name in sorted(buffer.naming)]
    yield pa.RecordBatch.from_pylist(about, schema=_READ)
