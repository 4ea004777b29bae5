"""The producer: idempotent, keyed by guest, counted."""

import time
from types import TracebackType
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from changelog.positions import Vector
from runtime.errors import TransientError
from runtime.settings import Settings

PARTITIONER = "murmur2_random"
"""Java's partitioner. librdkafka's own default sends most keys to another partition."""

FLUSH_SECONDS = 120.0


class Record(NamedTuple):
    """What goes into the log. A None value is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None


class ChangelogProducer:
    """Sends records and knows what was acknowledged. Use as a context manager: leaving it waits for the rest.

    ``rate`` limits to so many records a second (0: no limit). Raises TransientError, naming topic, partition and key,
    if Kafka refused a record: what was acknowledged before that stays in the log.
    """

    def __init__(self, settings: Settings, rate: float = 0) -> None:
        self._producer = Producer(
            {
                **settings.kafka.client(),
                "log_level": 3,  # what is retried is not worth a line; what fails is raised
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": PARTITIONER,
                "compression.type": "lz4",
                "linger.ms": 5,
                "batch.size": 512 * 1024,
                "message.max.bytes": 16 * 1024 * 1024,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 262_144,
            }
        )
        self._rate = rate
        self._began = time.monotonic()
        self._failure: str | None = None
        self.sent = 0
        self.acknowledged = 0
        self.ends: Vector = {}
        """Next offset after what was acknowledged here, for each topic-partition."""

    def send(self, record: Record) -> None:
        """Hand over one record. Returns before it is acknowledged; waits where the rate or the buffer says so."""
        if self._failure:
            raise TransientError(self._failure)
        if self._rate:
            self._keep_pace()
        while True:
            try:
                self._producer.produce(record.topic, key=record.key, value=record.value, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        self.sent += 1
        if self.sent % 500 == 0:
            self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything sent is acknowledged. Raises TransientError if something was not."""
        left = self._producer.flush(FLUSH_SECONDS)
        if self._failure:
            raise TransientError(self._failure)
        if left:
            raise TransientError(f"{left} records were not acknowledged within {FLUSH_SECONDS:.0f} s; is Kafka up?")

    def __enter__(self) -> "ChangelogProducer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.flush()
        else:
            self._producer.flush(5)

    def _keep_pace(self) -> None:
        """Wait until it is this record's turn, counted from the beginning so that nothing drifts."""
        ahead = self._began + self.sent / self._rate - time.monotonic()
        if ahead > 0.002:
            self._producer.poll(0)
            time.sleep(ahead)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic, partition = message.topic() or "", message.partition()
        if error is not None:
            self._failure = f"{topic}/{partition}, key {message.key()!r}: not acknowledged: {KafkaException(error)}"
            return
        self.acknowledged += 1
        ends = self.ends.setdefault(topic, {})
        offset = (message.offset() or 0) + 1
        if partition is not None and ends.get(partition, 0) < offset:
            ends[partition] = offset
