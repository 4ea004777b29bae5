"""The archiver: Kafka → raw objects. ``python -m changelog.archive.archiver``

It may be replaced by Secor, or replace it, at any time: the same layout, names and records. Nothing is committed before
it is stored, and it replaces no object: after a crash between the two, the object that is there is read back and
what it does not hold goes into a further one; all of it, if that is damaged. Exit status 78 means that somebody has to
look before it is started again.

Offsets without records (markers of transactions, aborted records) are passed like others: what was read without a gap
in reading and gave no record is noted beside the objects (``_empty``), and the commit goes past it.
"""

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from changelog.archive.secor import hour_of
from changelog.archive.store import ArchiveStore
from changelog.archive.write import Record, store
from changelog.erased import ERASED_VALUE
from changelog.erasures import Watched
from changelog.positions import Vector
from changelog.topics import admin, check_not_beyond, check_topics, is_fatal, offsets, topic_ids
from runtime import faults
from runtime.errors import ContractError, TransientError
from runtime.heartbeat import Heartbeat
from runtime.service import serve
from runtime.settings import Archiver as Limits
from runtime.settings import Settings

log = logging.getLogger("archiver")

FETCH = 5_000
CONTRACT_CHECK_SECONDS = 30.0
HELD_BYTES = 256 * 1024 * 1024
"""Of all partitions together: catching up, an archiver would fill the memory before its batches are old enough."""

RECORD_BYTES = 200
"""What Python takes for a record beside its key and value."""

BACK_OFF_SECONDS = (0.5, 1, 2, 4, 8)

Place = tuple[str, int]
"""Topic and partition."""


@dataclass
class Batch:
    """What is held of one partition, by hour, since its last commit.

    ``since``: where it begins, ``next``: where it ends; everything between was read. ``start``: the first offset with a
    record. ``empty``: (first, last) of the stretches without.
    """

    since: int
    next: int
    began: float
    start: int = 0
    size: int = 0
    hours: dict[int, list[Record]] = field(default_factory=dict)
    empty: list[tuple[int, int]] = field(default_factory=list)

    def add(self, offset: int, timestamp: int, key: bytes | None, value: bytes) -> None:
        if not self.hours:
            self.start = offset
        self.reach(offset)
        self.hours.setdefault(hour_of(timestamp), []).append((offset, timestamp, key, value))
        self.size += len(value) + len(key or b"") + 16
        self.next = offset + 1

    def reach(self, offset: int) -> None:
        """There is no record before ``offset`` any more."""
        if offset > self.next:
            self.empty.append((self.next, offset - 1))
            self.next = offset


def due(batches: Mapping[Place, Batch], limits: Limits, now: float) -> list[Place]:
    """Those that are to be stored: large or old enough; all of them where together they fill the memory."""
    if sum(batch.size + RECORD_BYTES * (batch.next - batch.since) for batch in batches.values()) > HELD_BYTES:
        return list(batches)
    return [
        place
        for place, batch in batches.items()
        if batch.size >= limits.max_bytes or now - batch.began >= limits.max_age_seconds
    ]


class Archiver:
    """One member of the archiver's consumer group."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = ArchiveStore(settings.s3)
        self._batches: dict[Place, Batch] = {}
        self._reached: dict[Place, int] = {}
        self._committed: dict[str, dict[str, int]] = {}
        self._stored = {"objects": 0, "records": 0, "bytes": 0}
        # As a service it has a name in the group: killed, it takes up its partitions again at once, where a nameless
        # one waits until the dead one is given up (10 s, or two minutes if that died while it joined).
        service = os.environ.get("ANABRANCH_SERVICE")
        self._consumer = Consumer(
            {
                **({"group.instance.id": service} if service else {}),
                **settings.kafka.client(),
                "group.id": settings.archiver.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 10_000,
                "max.poll.interval.ms": 120_000,
                "queued.max.messages.kbytes": 65_536,
                "fetch.message.max.bytes": 16 * 1024 * 1024,
            }
        )
        self._admin = admin(settings)
        self._erased = Watched(settings, only_served=True)
        self._ids: dict[str, str] = {}

    def run(self, heartbeat: Heartbeat, stopping: Event) -> None:
        """Consume, rotate, store, commit, until stopped; then store and commit what is held and leave the group."""
        self._check_contract()
        self._consumer.subscribe(
            list(self._settings.topics), on_assign=self._adopt, on_revoke=self._drop, on_lost=self._drop
        )
        checked = time.monotonic()
        try:
            while not stopping.is_set():
                self._take(self._consumer.consume(FETCH, 0.2))
                self._store_batches(due(self._batches, self._settings.archiver, time.monotonic()))
                heartbeat.beat("running", self._detail())
                if time.monotonic() - checked > CONTRACT_CHECK_SECONDS:
                    self._check_contract()
                    checked = time.monotonic()
            heartbeat.beat("stopping", self._detail())
            self._store_batches(list(self._batches))
        finally:
            self._consumer.close()

    def _check_contract(self) -> None:
        check_topics(self._settings)
        ids = topic_ids(self._settings)
        if self._ids and ids != self._ids:
            raise ContractError(f"topics were made anew while archiving: {self._ids} became {ids}; restore them")
        for topic, topic_id in ids.items() if not self._ids else ():
            made_from = self._patiently(lambda: self._store.claim(topic, topic_id))  # noqa: B023  # called at once
            if made_from != topic_id:
                raise ContractError(
                    f"{topic} has id {topic_id}; the archive under {self._store.prefix}/{topic} was made from a topic "
                    f"with id {made_from}. Restore the topic, or archive under another prefix"
                )
        self._ids = ids

    def _take(self, messages: list[Message]) -> None:
        erased = self._erased.now()
        for message in messages:
            topic, partition, error = message.topic() or "", message.partition() or 0, message.error()
            place, offset = (topic, partition), message.offset()
            is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
            if error is not None and not is_end:
                self._judge(error)
            elif place not in self._reached:
                continue  # it went to another member meanwhile
            elif is_end and offset is not None:
                if offset > self._reached[place]:
                    self._held(place).reach(offset)
            elif offset is None:
                raise TransientError("Kafka gave a message without a position")
            else:
                key, value = message.key(), message.value() or b""
                if erased.has(key):
                    key, value = None, ERASED_VALUE
                self._held(place).add(offset, message.timestamp()[1], key, value)

    def _held(self, place: Place) -> Batch:
        if place not in self._batches:
            self._batches[place] = Batch(self._reached[place], self._reached[place], time.monotonic())
        return self._batches[place]

    @staticmethod
    def _judge(error: KafkaError) -> None:
        if is_fatal(error) or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TransientError(f"Kafka: {error}")
        log.warning("Kafka: %s", error)

    def _adopt(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Note what was committed of the partitions in earlier lives, so that it is told from the beginning."""
        ends = offsets(self._settings, OffsetSpec.latest(), None, self._admin, IsolationLevel.READ_UNCOMMITTED)
        for place in consumer.committed(partitions, timeout=30):
            check_not_beyond("the archiver", {place.topic: {place.partition: place.offset}}, ends)
            if place.offset >= 0:
                self._committed.setdefault(place.topic, {})[str(place.partition)] = place.offset
            self._reached[place.topic, place.partition] = max(place.offset, 0)

    def _drop(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions that go to another member: it reads again what was not committed."""
        for partition in partitions:
            self._batches.pop((partition.topic, partition.partition), None)
            self._reached.pop((partition.topic, partition.partition), None)

    def _store_batches(self, places: list[Place]) -> None:
        """Store and commit. What Kafka no longer has may never have been read, so it is not noted as empty."""
        oldest: Vector = {}
        if any(self._batches[place].empty for place in places):
            oldest = offsets(self._settings, OffsetSpec.earliest(), client=self._admin)
        for place in places:
            batch = self._batches[place]
            start = oldest.get(place[0], {}).get(place[1], 0)
            batch.empty = [(max(first, start), last) for first, last in batch.empty if last >= start]
            self._store_batch(place)

    def _store_batch(self, place: Place) -> None:
        """Store every hour of a partition's batch, and what is empty, then commit. Retries while the store is away;
        nothing is lost."""
        topic, partition = place
        batch = self._batches[place]
        for hour, records in sorted(batch.hours.items()):
            faults.point("archiver.before-upload")
            stored = store(self._store, topic, partition, hour, batch.start, records, self._patiently)
            if stored:
                self._stored["objects"] += 1
                self._stored["records"] += stored.records
                self._stored["bytes"] += stored.size
        if batch.empty:
            self._patiently(lambda: self._store.note_empty(topic, partition, (batch.since, batch.next), batch.empty))
        faults.point("archiver.before-commit")
        del self._batches[place]
        self._reached[place] = batch.next
        try:
            self._consumer.commit(offsets=[TopicPartition(topic, partition, batch.next)], asynchronous=False)
        except KafkaException as error:
            # a member that was away too long: whoever has the partition now stores these records again
            log.warning("%s/%d: not committed (%s)", topic, partition, error)
            if error.args[0].retriable() or is_fatal(error.args[0]):
                raise TransientError(f"{topic}/{partition}: the commit was not taken: {error}") from error
            return
        self._committed.setdefault(topic, {})[str(partition)] = batch.next

    def _patiently(self, call: Any) -> Any:
        """Call until the object store answers. The consumer is kept alive meanwhile by its own thread, for a time."""
        attempt = 0
        while True:
            try:
                return call()
            except (BotoCoreError, ClientError, OSError) as error:
                wait = BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)]
                attempt += 1
                if attempt > 12:
                    raise TransientError(f"the object store does not answer: {error}") from error
                log.warning("object store: %s; again in %s s", error, wait)
                time.sleep(wait)

    def _detail(self) -> dict[str, Any]:
        known = {"committed": self._committed} if self._committed else {}
        return {**known, **self._stored, "held": sum(b.size for b in self._batches.values())}


def main() -> int:
    """Run until told to stop. Returns the exit status."""
    logging.getLogger("botocore").setLevel(logging.WARNING)
    return serve("archiver", run)


def run(settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
    """Archive until it is time to stop."""
    heartbeat.beat("starting", {})
    Archiver(settings).run(heartbeat, stopping)


if __name__ == "__main__":
    sys.exit(main())
