"""Alerts on their way out: each match of an alerting view, once, as a record in ``alert.<view>``.

They are sent after the commit of their epoch and before Spark notes it as done, in one transaction of Kafka's. An epoch
that is run again finds the same alerts; what the topics hold already is not sent again, which is read once, when the
application starts, from as far back as the epochs that can come again. So each is there once, whatever was killed; who
reads the topics reads committed records.
"""

import json
import logging
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from changelog.producer import PARTITIONER
from changelog.topics import offsets_at
from runtime import faults
from runtime.errors import TransientError
from runtime.settings import Settings, topic_of
from views.matching import SECOND, Matches

log = logging.getLogger("alerts")

TIMEOUT = 30.0


class Source(NamedTuple):
    """What tells alerts apart: the view, and the record that gave rise to it."""

    view: str
    partition: int
    offset: int


def alert_topic(view: Matches) -> str:
    """``alert.<view>``."""
    return f"alert.{view.name}"


class Alerts:
    """Sends alerts. One at a time for each pipeline: a new one fences the one before."""

    def __init__(self, settings: Settings, pipeline: str, views: Sequence[Matches], since: datetime) -> None:
        """``since``: alerts of epochs that can come again were sent after this. Raises TransientError if Kafka does not
        answer."""
        self._settings = settings
        self._views = {view.name: view for view in views}
        self._producer = Producer({
            **settings.kafka.client(), "transactional.id": f"alerts-{pipeline}", "log_level": 3,
            "partitioner": PARTITIONER, "compression.type": "lz4",
        })  # fmt: skip
        try:
            self._producer.init_transactions(TIMEOUT)
            self._sent = {source for view in views for source in self._read(view, since)}
        except KafkaException as error:
            raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error

    def send(self, matches: Iterable[tuple[str, str]]) -> int:
        """Send those of an epoch's matches (view, match as JSON) that are not there yet. Returns how many they were."""
        new = {}
        for name, text in matches:
            match = json.loads(text)
            source = Source(name, match["source_partition"], match["source_offset"])
            if source not in self._sent:
                new[source] = match
        if not new:
            return 0
        self._producer.begin_transaction()
        for source, match in new.items():
            view = self._views[source.view]
            value = json.dumps(_message(view, source, match))
            while True:
                try:
                    self._producer.produce(alert_topic(view), key=match["guest_ref"], value=value)
                    break
                except BufferError:  # more than it holds
                    self._producer.flush(TIMEOUT)
            self._producer.poll(0)
        faults.point("alerts.before-commit")
        self._producer.commit_transaction(TIMEOUT)
        self._sent.update(new)
        log.info("%d alerts sent", len(new))
        return len(new)

    def _read(self, view: Matches, since: datetime) -> Iterable[Source]:
        """The alerts of a view that were sent at or after ``since``."""
        kafka, topic = self._settings.kafka, alert_topic(view)
        consumer = Consumer({
            **kafka.client(), "group.id": "anabranch-alerts", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 3,
        })  # fmt: skip
        try:
            partitions = set(range(self._settings.kafka.partitions))
            consumer.assign([TopicPartition(topic, p, offsets_at(kafka, topic, p, since)) for p in partitions])
            deadline = time.monotonic() + TIMEOUT
            while partitions:
                messages = consumer.consume(1000, 0.1)  # it waits that long even if all that there is has come
                if messages:
                    deadline = time.monotonic() + TIMEOUT
                elif time.monotonic() > deadline:
                    raise TransientError(f"{topic}: Kafka does not give what it holds within {TIMEOUT:.0f} s")
                for message in messages:
                    error = message.error()
                    if error and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error:
                        partitions.discard(message.partition())
                    else:
                        source = json.loads(message.value() or b"")["source"]
                        yield Source(view.name, source["partition"], source["offset"])
        finally:
            consumer.close()


def _message(view: Matches, source: Source, match: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(match["at"] / SECOND, UTC)
    return {
        "pattern": view.name,
        "guestRef": match["guest_ref"],
        "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "detail": json.loads(match["detail"]),
        "source": {"topic": topic_of(view.entity), "partition": source.partition, "offset": source.offset},
    }
