"""Raw archive objects as records: the reading half of ingest. Runs in Spark's Python workers."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from changelog.archive.secor import read_object
from changelog.archive.store import ArchiveStore
from changelog.classify import CLASSIFIED, CLASSIFIED_DDL, RECORD, classify_batch
from changelog.positions import Vector
from runtime.errors import ArchiveError
from runtime.settings import ObjectStore

OBJECT, BROKEN = "object", "broken"
"""Kinds of the rows about objects themselves: one that was read whole (``kafka_offset`` its last offset, ``identifier``
its number of records), and one that could not be (``reason``)."""

READ_DDL = CLASSIFIED_DDL + ", object string, etag string"
_READ = pa.schema([*CLASSIFIED, pa.field("object", pa.string()), pa.field("etag", pa.string())])
_ROWS = 20_000


def read_objects(
    spark: SparkSession, store: ObjectStore, objects: list[tuple[str, int, str, str]], positions: Vector, tasks: int
) -> DataFrame:
    """The classified records of raw objects at or after ``positions``, and one row about each object.

    ``objects``: (topic, partition, key, etag). Columns: ``READ_DDL``. An empty or damaged object gives the rows before
    the damage and a row of kind ``broken``: what is missing shows as a hole and is mended there.
    """
    frame = spark.createDataFrame(objects, "topic string, kafka_partition int, object string, etag string")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archive = ArchiveStore(store)
        for batch in batches:
            for row in batch.to_pylist():
                yield from _object(archive, row, positions[row["topic"]][row["kafka_partition"]])

    return frame.repartition(tasks).mapInArrow(read, READ_DDL)


def _object(archive: ArchiveStore, row: dict[str, object], position: int) -> Iterator[pa.RecordBatch]:
    topic, partition, name, etag = row["topic"], row["kafka_partition"], str(row["object"]), row["etag"]
    offsets: list[int] = []
    times: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    last, records = -1, 0

    def flush() -> pa.RecordBatch:
        rows = len(offsets)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([topic] * rows, pa.string()),
                pa.array([partition] * rows, pa.int32()),
                pa.array(offsets, pa.int64()),
                pa.array(times, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
            ],
            schema=RECORD,
        )
        classified = classify_batch(batch)
        named = [pa.array([name] * rows, pa.string()), pa.array([etag] * rows, pa.string())]
        for column in (offsets, times, keys, values):
            column.clear()
        return pa.RecordBatch.from_arrays([*classified.columns, *named], schema=_READ)

    about = {"topic": topic, "kafka_partition": partition, "object": name, "etag": etag}
    try:
        for record in read_object(archive.get(name), name):
            records += 1
            last = max(last, record.offset)
            if record.offset >= position:
                offsets.append(record.offset)
                times.append(record.timestamp_ms)
                keys.append(record.key)
                values.append(record.value or None)
                if len(offsets) == _ROWS:
                    yield flush()
        about |= {"kind": OBJECT, "kafka_offset": last, "identifier": str(records)}
    except ArchiveError as error:
        about |= {"kind": BROKEN, "kafka_offset": last, "reason": str(error)}
    if offsets:
        yield flush()
    yield pa.RecordBatch.from_pylist([about], schema=_READ)
