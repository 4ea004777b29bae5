"""What a store of identities lacks, read from the log itself."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from changelog.classify import CHANGE, RECORD, classify_batch
from changelog.erased import NOBODY, Erased
from changelog.identities import SLACK_SECONDS, Identities, Row, digest
from changelog.topics import offsets_at
from runtime.errors import TransientError
from runtime.settings import Kafka

SILENCE_SECONDS = 20.0

WORTH_ASKING = 10_000
"""Fewer offsets are read faster than Kafka is asked where the horizon begins: transactions leave gaps of one."""

_consumers: dict[str, Consumer] = {}
"""The consumer of this process, by broker."""


def rows_of(classified: pa.RecordBatch) -> list[Row]:
    """Offset, time and identity of every record; what is not a change has an identity that is never asked for."""
    names = ("kafka_offset", "key", "service_name", "identifier")
    columns: list[list[Any]] = [classified.column(name).to_pylist() for name in names]
    times = classified.column("append_time").cast(pa.int64()).to_pylist()
    return [
        (offset, time, b"" if identifier is None else digest(key, service, identifier))
        for offset, time, key, service, identifier in zip(columns[0], times, *columns[1:], strict=True)
    ]


def catch_up(
    kafka: Kafka,
    store: Identities,
    topic: str,
    partition: int,
    first: int,
    appended: int,
    horizon_seconds: int,
    erased: Erased = NOBODY,
) -> None:
    """Show the store what it lacks of the log before ``first``, as far back as the horizon reaches."""
    known = store.next()
    reached = 0 if known is None else known
    if reached >= first:
        return
    if first - reached > WORTH_ASKING:
        back = appended // 1_000_000 - horizon_seconds - SLACK_SECONDS
        since = offsets_at(kafka, topic, partition, datetime.fromtimestamp(max(0, back), UTC))
        reached = max(reached, since)
    for batch in _read(kafka, topic, partition, reached, first):
        classified = classify_batch(batch, erased)
        rows = rows_of(classified)
        changes = [row for row, kind in zip(rows, classified.column("kind").to_pylist(), strict=True) if kind == CHANGE]
        store.mark(changes, rows[-1][0] + 1)
    store.mark([], first)


def _read(kafka: Kafka, topic: str, partition: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The committed records of a topic-partition with ``first`` <= offset < ``end``; ``end`` is a record's offset."""
    consumer = _consumer(kafka)
    deadline = time.monotonic() + SILENCE_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        while first < end:
            messages = consumer.consume(10_000, 0.05)  # it waits that long even if all that there is has come
            failed = next((message.error() for message in messages if message.error()), None)
            if failed or (not messages and time.monotonic() > deadline):
                raise TransientError(f"{topic}/{partition}: Kafka does not give offset {first} ({failed or 'silence'})")
            if not messages:
                continue
            deadline = time.monotonic() + SILENCE_SECONDS
            first = (messages[-1].offset() or 0) + 1
            before = [message for message in messages if (message.offset() or 0) < end]
            if before:
                yield pa.RecordBatch.from_pylist(
                    [
                        {
                            "topic": topic,
                            "kafka_partition": partition,
                            "kafka_offset": message.offset(),
                            "append_time": message.timestamp()[1] * 1000,
                            "key": message.key(),
                            "value": message.value(),
                        }
                        for message in before
                    ],
                    schema=RECORD,
                )
    except KafkaException as error:
        raise TransientError(f"{topic}/{partition}: Kafka does not answer: {error}") from error
    finally:
        consumer.unassign()


def _consumer(kafka: Kafka) -> Consumer:
    """This process's consumer; making one takes longer than reading what lies between two transactions."""
    if kafka.bootstrap not in _consumers:
        _consumers[kafka.bootstrap] = Consumer(
            {
                **kafka.client(),
                "group.id": "anabranch-identities",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 3,
            }
        )
    return _consumers[kafka.bootstrap]
