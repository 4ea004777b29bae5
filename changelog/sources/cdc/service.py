"""The service ``cdc``: the captured stream → the changelog. ``python -m changelog.sources.cdc``

It consumes, maps and produces in transactions of Kafka's, with its own offset and mark in the same transaction: what it
wrote and how far it is are one fact, so wherever it is killed it neither loses nor repeats. Exit status 78 means that
it must not be started again before somebody has looked: the message says what to do.
"""

import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from changelog.envelope import Entity
from changelog.erased import Erased
from changelog.erasures import Watched
from changelog.exact import parse
from changelog.positions import Vector
from changelog.producer import PARTITIONER, Record
from changelog.reader import Entry, Reader
from changelog.said import Said
from changelog.sources.cdc import capture, events, stream
from changelog.sources.cdc.mapper import BAD_TOPIC, PARTS, Mapper, Mark, Name, bad_key
from changelog.topics import MAX_RECORD_BYTES, offsets_at, start_offsets
from changelog.transactions import TIMEOUT, answering, send_offsets
from runtime import faults
from runtime.errors import RetentionError, TerminalError, TransientError
from runtime.heartbeat import Heartbeat
from runtime.service import serve
from runtime.settings import Settings

log = logging.getLogger("cdc")

TAKE = 5_000
"""So many records of the stream are taken at most for one transaction."""

PART = 2_000
"""So many records of a snapshot are written in one transaction."""

KEPT_SECONDS = 2.0
"""How often the offset is committed where nothing follows from what is read."""

LOOK_SECONDS = 5.0
BEFORE_SECONDS = 60.0
"""How long before a snapshot began the stream is read for it. A transaction is in the stream once it is on disk, and
visible to others a moment later; what is read in between is older than what the stream said."""

SILENCE_SECONDS = 300.0
"""A snapshot that is needed and of which nothing is heard for so long is asked for again: the connector was killed
before it could say that it was over, or the request never came."""

REMEDY = "read the database whole: anabranch cdc anew"


def main() -> int:
    """Run until told to stop. Returns the exit status."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return serve("cdc", run)


def run(settings: Settings, heartbeat: Heartbeat, stopping: threading.Event) -> None:
    """Map until it is time to stop."""
    heartbeat.beat("starting", {})
    looking = Looking(settings, stopping)
    looking.start()
    with Capture(settings) as running:
        while not stopping.is_set():
            heartbeat.beat("running", {**running.detail(), **looking.seen})
            running.step()
            running.ask(looking.seen.get("connector"))
        heartbeat.beat("stopping", running.detail())


class Looking(threading.Thread):
    """Looks after connector and slot from time to time, so that one that does not answer holds nothing up."""

    def __init__(self, settings: Settings, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._settings, self._stopping = settings, stopping
        self.seen: dict[str, Any] = {}

    def run(self) -> None:
        while not self._stopping.is_set():
            self.seen = capture.look(self._settings)
            self._stopping.wait(LOOK_SECONDS)


class Capture:
    """The one writer of the shop's refs: a new one fences the one before. Use as a context manager.

    Raises TransientError if Kafka does not take part; a new one goes on where the last committed transaction ended.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer = Producer({
            **settings.kafka.client(), "transactional.id": stream.GROUP, "log_level": 3,
            "partitioner": PARTITIONER, "compression.type": "lz4", "linger.ms": 5, "batch.size": 512 * 1024,
            "message.max.bytes": MAX_RECORD_BYTES, "queue.buffering.max.kbytes": 262_144,
            "transaction.timeout.ms": 300_000,
        })  # fmt: skip
        with answering(self._settings):
            self._producer.init_transactions(TIMEOUT)  # ends what a killed one has left open
        self._watched = Watched(settings)
        self._erased = self._watched.now()
        self._said = Said(settings, settings.home / "cdc" / "said", tuple(PARTS), self._erased)
        self._said.catch_up()
        offset, mark = self._committed()
        bad = read_bad(settings)
        gone = [name for name, current in bad.items() if is_of_erased(current, self._erased)]
        for name in gone:
            del bad[name]
        rows = settings.home / "cdc" / "snapshot"
        self._mapper = Mapper(self._said, settings.cdc.refs, rows, mark, offset, bad, self._before)
        self._reader = Reader(settings, {stream.TOPIC: {0: self._mapper.start}}, 100, stream.GROUP)
        self._position = self._saved = offset
        self._saved_at = time.monotonic()
        self._pending = 0
        self._ends: Vector = {}
        self._heard = time.monotonic()
        self._counts = {"taken": 0, "written": 0, "snapshots": 0, "erased": 0}
        log.info("going on at offset %d, reading from %d", offset, self._mapper.start)
        for name in gone:  # nobody will ever say of them again that they are no longer bad
            self._produce(Record(BAD_TOPIC, bad_key(name), None))
        if gone:
            self._commit([])

    def step(self) -> None:
        """Take what is there, or wait half a second for it, and write what follows from it."""
        if self._watched.now().number != self._erased.number:  # what is kept of the guest here goes with the files
            raise TransientError("a guest has been erased: it begins again without them")
        try:
            entries = self._reader.read(0.5, TAKE)
        except RetentionError as error:
            raise TerminalError(f"{error}: changes of the shop were missed; {REMEDY}") from error
        if entries:
            self._said.catch_up(self._ends)
            self._mapper.settled()
        for entry in entries:
            self._take(entry)
            if self._mapper.reread is not None:
                self._save()
                self._read_again(self._mapper.reread)
                break
        moved = self._position != self._saved
        if self._pending or (moved and time.monotonic() - self._saved_at > KEPT_SECONDS):
            self._save()

    def ask(self, connector: dict[str, Any] | None) -> None:
        """Ask for a snapshot where one is overdue. ``connector``: its state as Connect says."""
        quiet = time.monotonic() - self._heard
        if not is_awaited(self._mapper.mark, connector):
            self._heard = time.monotonic()
        elif quiet > SILENCE_SECONDS:
            self._heard = time.monotonic()
            try:
                request = capture.snapshot(self._settings, [])
                log.warning(
                    "nothing was heard for %.0f s of a snapshot that is needed; asked again: %s", quiet, request
                )
            except TransientError as error:
                log.warning("a snapshot is needed, and cannot be asked for: %s", error)

    def _take(self, entry: Entry) -> None:
        event = events.parse(entry.topic, entry.partition, entry.offset, entry.value)
        if isinstance(event, events.Started | events.Read | events.TableRead):
            self._heard = time.monotonic()
        whole = isinstance(event, events.Completed)
        if whole and self._pending:
            self._save()  # what a snapshot says may be written in parts, and nothing else
        for records in self._mapper.take(entry.offset, event):
            for record in records:
                if (admitted := admit(record, self._erased)) is not None:
                    self._produce(admitted)
                else:
                    self._counts["erased"] += 1
            if whole and self._pending >= PART:
                self._commit([])
                self._said.catch_up(self._ends)
                self._mapper.settled()
                faults.point("cdc.part-of-snapshot")
        self._counts["taken"] += 1
        self._counts["snapshots"] += whole
        self._position = max(self._position, entry.offset + 1)

    def _produce(self, record: Record) -> None:
        if not self._pending:
            with answering(self._settings):
                self._producer.begin_transaction()
        self._pending += 1
        while True:
            try:
                self._producer.produce(record.topic, key=record.key, value=record.value, on_delivery=self._delivered)
                break
            except BufferError:  # more than it holds
                self._producer.poll(0.1)
        self._producer.poll(0)

    def _save(self) -> None:
        """Commit what is pending, with how far that is: both or neither."""
        if self._mapper.mark is None and not self._pending:
            return
        if not self._pending:
            with answering(self._settings):
                self._producer.begin_transaction()
        mark = "" if self._mapper.mark is None else self._mapper.mark.to_json()
        self._commit([TopicPartition(stream.TOPIC, 0, self._mapper.safe(self._position), mark)])
        self._saved, self._saved_at = self._position, time.monotonic()

    def _commit(self, offsets: list[TopicPartition]) -> None:
        faults.point("cdc.produced")
        if offsets:
            with answering(self._settings):
                send_offsets(self._producer, offsets, self._reader.group())
        faults.point("cdc.before-commit")
        with answering(self._settings):
            self._producer.commit_transaction(TIMEOUT)
        faults.point("cdc.after-commit")
        self._counts["written"] += self._pending
        self._pending = 0

    def _read_again(self, since: int) -> None:
        log.info("reading again from offset %d, for the snapshot", since)
        self._reader.close()
        self._reader = Reader(self._settings, {stream.TOPIC: {0: since}}, 100, stream.GROUP)
        self._mapper.reread = None

    def _before(self, offset: int) -> int:
        """The offset some time before a snapshot that is announced at ``offset``."""
        first, _ = stream.bounds(self._settings)
        then = datetime.fromtimestamp(time.time() - BEFORE_SECONDS, UTC)
        found = offsets_at(self._settings.kafka, stream.TOPIC, 0, then)
        return max(first, min(offset, found))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            return  # the commit fails then
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic in self._settings.topics and partition is not None and offset is not None:
            ends = self._ends.setdefault(topic, {})
            ends[partition] = max(ends.get(partition, 0), offset + 1)

    def _committed(self) -> tuple[int, Mark | None]:
        """Where to go on. Raises TerminalError where that is not known, or no longer there."""
        first, end = stream.bounds(self._settings)
        found = stream.committed(self._settings)
        if found is not None:
            offset, text = found
            mark = Mark.from_json(text) if text else None
            start = offset if mark is None or mark.since is None else mark.since
            if not first <= start <= end:
                raise TerminalError(
                    f"{stream.TOPIC} has offsets {first} to {end}, to go on {start} is needed; {REMEDY}"
                )
            return offset, mark
        for entity in PARTS:
            for _, version in self._said.all(entity):
                if version.current["ref"].startswith(self._settings.cdc.refs):
                    raise TerminalError(
                        f"the offset of {stream.GROUP} is lost, and the log has entities of the shop; {REMEDY}"
                    )
        return first, None

    def detail(self) -> dict[str, Any]:
        """What the heartbeat says: ``committed``, the position; counts since the start; what is known of the stream."""
        mark = self._mapper.mark
        return {
            "committed": {stream.TOPIC: {"0": self._saved}},
            **self._counts,
            "bad": len(self._mapper.bad),
            "unknown": self._mapper.unknown,
            "whole": mark is not None and mark.whole,
            "snapshot": mark is not None and mark.since is not None,
        }

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._mapper.close()
        self._said.close()


def admit(record: Record, erased: Erased) -> Record | None:
    """What is written of a record: nothing of an erased guest, and where ``cdc.bad`` keeps such an entity, its end."""
    if record.topic != BAD_TOPIC:
        return None if erased.has(record.key) else record
    is_kept = not record.value or not is_of_erased(parse(record.value), erased)
    return record if is_kept else record._replace(value=None)


def is_of_erased(current: Entity, erased: Erased) -> bool:
    """Whether an entity, valid or not, says that it is an erased guest's."""
    guest = current.get("guestRef", current.get("ref"))
    return isinstance(guest, str) and erased.has(guest)


def is_awaited(mark: Mark | None, connector: dict[str, Any] | None) -> bool:
    """Whether something should be heard of a snapshot: one is under way, or none was ever complete in this life of the
    stream, and the connector runs."""
    if mark is None or connector is None or connector["task"] != "RUNNING":
        return False
    return not mark.whole or mark.since is not None


def read_bad(settings: Settings) -> dict[Name, Entity]:
    """The entities that the log's schema refuses, as the shop has them: ``cdc.bad`` from beginning to end."""
    bad: dict[Name, Entity] = {}
    with Reader(settings, start_offsets(settings, [BAD_TOPIC]), 50) as reader:
        for entries in reader.read_to(reader.ends()):
            for entry in entries:
                entity, _, ref = (entry.key or b"").decode().partition("/")
                if entry.value:
                    bad[entity, ref] = parse(entry.value)
                else:
                    bad.pop((entity, ref), None)
    return bad
