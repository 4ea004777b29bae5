"""From bytes to kinds: every record of the log is a change, bad, a tombstone, or erased (duplicates are told apart
later).

:func:`classifier` makes what ``DataFrame.mapInArrow`` runs in both layers, so that a record is judged once and alike.
"""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from changelog.erased import ERASED_VALUE, NOBODY, Erased
from changelog.validation import check

CHANGE, DUPLICATE, BAD, TOMBSTONE, ERASED = "change", "duplicate", "bad", "tombstone", "erased"

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
"""``reason`` is there for bad records, ``service_name`` and ``identifier`` for changes. An erased one has neither key
nor value."""

IDENTITY = ["topic", "key", "service_name", "identifier"]
"""Columns in which a change and its copies agree."""

_VERDICT = [("kind", pa.string()), ("reason", pa.string()), ("service_name", pa.string()), ("identifier", pa.string())]
CLASSIFIED = pa.schema([*RECORD, *(pa.field(name, type_) for name, type_ in _VERDICT)])


def classify(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """:func:`classifier` where nobody is erased."""
    return classifier(NOBODY)(batches)


def classifier(erased: Erased) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What appends kind, reason, service_name and identifier to batches of ``RECORD_DDL``; bad input never raises."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield classify_batch(batch, erased)

    return run


def classify_batch(batch: pa.RecordBatch, erased: Erased = NOBODY) -> pa.RecordBatch:
    """One batch of :func:`classifier`: the same rows in the same order with four columns more."""
    kinds: list[str] = []
    reasons: list[str | None] = []
    services: list[str | None] = []
    identifiers: list[str | None] = []
    topics = batch.column("topic").to_pylist()
    keys = batch.column("key").to_pylist()
    values = batch.column("value").to_pylist()
    for topic, key, value in zip(topics, keys, values, strict=True):
        kind, reason, service, identifier = _verdict(topic, key, value, erased)
        kinds.append(kind)
        reasons.append(reason)
        services.append(service)
        identifiers.append(identifier)
    verdict = [pa.array(column, pa.string()) for column in (kinds, reasons, services, identifiers)]
    made = pa.RecordBatch.from_arrays([*batch.columns, *verdict], names=CLASSIFIED.names)
    return _without_content(made, kinds) if ERASED in kinds else made


def _verdict(
    topic: str, key: bytes | None, value: bytes | None, erased: Erased
) -> tuple[str, str | None, str | None, str | None]:
    if erased.has(key) or (value == ERASED_VALUE and not key):
        return ERASED, None, None, None
    if not value:
        return TOMBSTONE, None, None, None
    entity = topic[topic.index(".") + 1 :]
    reason, service, identifier = check(entity, key, value)
    if reason is None:
        return CHANGE, None, service, identifier
    if erased.is_named_in(entity, key, value):  # a change names nobody but its key
        return ERASED, None, None, None
    return BAD, reason, service, identifier


def _without_content(classified: pa.RecordBatch, kinds: list[str]) -> pa.RecordBatch:
    kept = pa.array([kind != ERASED for kind in kinds])
    for name in ("key", "value"):
        at = classified.schema.get_field_index(name)
        content = pc.if_else(kept, classified.column(name), pa.scalar(None, classified.column(name).type))
        classified = classified.set_column(at, name, content)
    return classified
