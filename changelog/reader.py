"""Reading topics as plain consumers do: committed records from given positions, with no group that shares them out."""

import logging
import time
from collections.abc import Iterator
from typing import NamedTuple, Self, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from changelog.positions import Vector
from changelog.topics import admin, end_offsets, is_fatal
from runtime.errors import RetentionError, TransientError
from runtime.settings import Settings

log = logging.getLogger("reader")

SILENCE_SECONDS = 30.0


class Entry(NamedTuple):
    """A record as the log holds it. ``time``: when it was appended, in ms since 1970, by the broker's clock."""

    topic: str
    partition: int
    offset: int
    time: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]


class Reader:
    """Reads topic-partitions from ``positions`` on. Use as a context manager, or close it.

    ``positions`` moves along: the next offset of each, behind the last record that was given and, where nothing more
    was there, behind the transaction markers that follow it.
    """

    def __init__(
        self, settings: Settings, positions: Vector, wait_ms: int = 500, group: str = "anabranch-reader"
    ) -> None:
        """``wait_ms``: how long the broker may hold back that there is no more. Less of it costs the broker more.
        ``group``: in whose name offsets may be committed."""
        self._settings = settings
        self.positions: Vector = {topic: dict(partitions) for topic, partitions in positions.items()}
        self._admin: AdminClient | None = None
        self._consumer = Consumer({
            **settings.kafka.client(), "group.id": group, "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "enable.partition.eof": True,
            "fetch.wait.max.ms": wait_ms,
            "queued.max.messages.kbytes": 32_768, "fetch.message.max.bytes": 16 * 1024 * 1024, "log_level": 3,
        })  # fmt: skip
        self._consumer.assign(
            [TopicPartition(topic, p, offset) for topic, parts in positions.items() for p, offset in parts.items()]
        )

    def read(self, seconds: float, limit: int = 10_000, linger_seconds: float = 0) -> list[Entry]:
        """The next records, in the order of offsets in each partition; none if none came within ``seconds``.

        It returns as soon as there is one, with what else is there; with ``linger_seconds`` it gathers for so long.
        Raises RetentionError if Kafka no longer has what is at a position, TransientError if a topic is gone.
        """
        messages = self._consumer.consume(1, seconds)
        if messages:
            messages += self._consumer.consume(limit - 1, linger_seconds)
        entries = []
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._judge(message, error)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is None or partition is None or offset is None:
                raise TransientError("Kafka gave a message without a position")
            if error is not None:  # the end: behind what is no record
                self.positions[topic][partition] = max(offset, self.positions[topic][partition])
                continue
            self.positions[topic][partition] = offset + 1
            told = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            headers = {name: (value or b"").decode() for name, value in told}
            entries.append(
                Entry(topic, partition, offset, message.timestamp()[1], message.key(), message.value(), headers)
            )
        return entries

    def group(self) -> object:
        """What a producer needs to commit the group's offsets in its transaction."""
        return self._consumer.consumer_group_metadata()

    def ends(self) -> Vector:
        """The end of every topic-partition now: the next offset after what is committed."""
        if self._admin is None:
            self._admin = admin(self._settings)
        return end_offsets(self._settings, self.positions, self._admin)

    def read_to(self, ends: Vector) -> Iterator[list[Entry]]:
        """What lies before ``ends``, and perhaps some more. Raises TransientError if Kafka falls silent before it."""
        deadline = time.monotonic() + SILENCE_SECONDS
        before = self.distance(ends)
        while before:
            if entries := self.read(0.5):
                yield entries
            left = self.distance(ends)
            if left < before:
                deadline, before = time.monotonic() + SILENCE_SECONDS, left
            elif time.monotonic() > deadline:
                raise TransientError(
                    f"Kafka at {self._settings.kafka.bootstrap} does not give {left} offsets up to {ends}; "
                    f"it is read up to {self.positions}"
                )

    def distance(self, ends: Vector) -> int:
        """How many offsets lie between the positions and ``ends``."""
        return sum(
            max(0, end - self.positions[topic][partition])
            for topic, partitions in ends.items()
            for partition, end in partitions.items()
        )

    def close(self) -> None:
        """Give the connections back."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _judge(self, message: Message, error: KafkaError) -> None:
        where = f"{message.topic()}/{message.partition()}"
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            at = self.positions.get(message.topic() or "", {}).get(message.partition() or 0)
            raise RetentionError(f"{where}: Kafka does not have offset {at} ({error.str()})")
        if is_fatal(error) or error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            raise TransientError(f"{where}: {KafkaException(error)}")
        log.warning("Kafka: %s", error)
