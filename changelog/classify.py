"""From bytes to kinds: every record of the log is a change, bad, or a tombstone (duplicates are told apart later).

:func:`classify` is what ``DataFrame.mapInArrow`` runs in both layers, so that a record is judged once and alike.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from changelog.validation import check

CHANGE, DUPLICATE, BAD, TOMBSTONE = "change", "duplicate", "bad", "tombstone"

RECORD = pa.schema(
    [
        ("topic", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("append_time", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record as the log holds it. ``append_time`` is the broker's."""

RECORD_DDL = "topic string, kafka_partition int, kafka_offset bigint, append_time timestamp, key binary, value binary"

FROM_KAFKA = (
    "topic",
    "partition AS kafka_partition",
    "offset AS kafka_offset",
    "timestamp AS append_time",
    "key",
    "value",
)
"""``selectExpr`` that makes ``RECORD_DDL`` of what Spark's Kafka source gives."""

CLASSIFIED_DDL = RECORD_DDL + ", kind string, reason string, service_name string, identifier string"
"""``reason`` is there for bad records, ``service_name`` and ``identifier`` for changes."""

IDENTITY = ["topic", "key", "service_name", "identifier"]
"""Columns in which a change and its copies agree."""

_VERDICT = [("kind", pa.string()), ("reason", pa.string()), ("service_name", pa.string()), ("identifier", pa.string())]
CLASSIFIED = pa.schema([*RECORD, *(pa.field(name, type_) for name, type_ in _VERDICT)])


def classify(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Append kind, reason, service_name and identifier to batches of ``RECORD_DDL``. Never raises for bad input."""
    for batch in batches:
        yield classify_batch(batch)


def classify_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One batch of :func:`classify`: the same rows in the same order with four columns more."""
    kinds: list[str] = []
    reasons: list[str | None] = []
    services: list[str | None] = []
    identifiers: list[str | None] = []
    topics = batch.column("topic").to_pylist()
    keys = batch.column("key").to_pylist()
    values = batch.column("value").to_pylist()
    for topic, key, value in zip(topics, keys, values, strict=True):
        if not value:
            kind, reason, service, identifier = TOMBSTONE, None, None, None
        else:
            reason, service, identifier = check(topic[topic.index(".") + 1 :], key, value)
            kind = CHANGE if reason is None else BAD
        kinds.append(kind)
        reasons.append(reason)
        services.append(service)
        identifiers.append(identifier)
    verdict = [pa.array(column, pa.string()) for column in (kinds, reasons, services, identifiers)]
    return pa.RecordBatch.from_arrays([*batch.columns, *verdict], names=CLASSIFIED.names)
