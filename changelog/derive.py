"""The service ``derive``: changelog → ``latest.<entity>`` and ``patch.<entity>``. ``python -m changelog.derive``

It consumes, derives and produces in transactions of Kafka's, with its own offsets in the same transaction: what it
wrote and how far it is are one fact, so wherever it is killed it neither loses nor repeats nor reorders. What Kafka has
let go of before it was derived is derived from the archive. Exit status 78 means that it must not be started again
before somebody has looked: the message says what to do.
"""

import json
import logging
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from confluent_kafka import Producer, TopicPartition

from changelog.changes import Changes
from changelog.derived import (
    DERIVED,
    GROUP,
    MAX_DERIVED_BYTES,
    Derived,
    burial,
    derive,
    derived_topics,
    latest_topic,
    patch_topic,
    source_of,
)
from changelog.envelope import guest_ref
from changelog.erasures import Watched
from changelog.latest import updates
from changelog.positions import Vector, covers, to_json
from changelog.reader import Entry, Reader
from changelog.topics import (
    acknowledged_offsets,
    check_topics,
    committed_offsets,
    end_offsets,
    start_offsets,
    topic_ids,
)
from changelog.transactions import TIMEOUT, answering, send_offsets
from runtime import faults, ops
from runtime.errors import ContractError, RetentionError, TransientError
from runtime.heartbeat import Heartbeat
from runtime.service import serve
from runtime.settings import Settings, topic_of

log = logging.getLogger("derive")

CONTRACT_CHECK_SECONDS = 30.0
SOURCES = tuple(topic_of(entity) for entity in DERIVED)

KEPT_SECONDS = 3600.0
"""How often offsets are committed where nothing happens: Kafka forgets, partition by partition, what was committed days
ago."""

BEHIND_MARKERS_SECONDS = 5.0
"""How soon they are where only transaction markers were passed: retention may drop these, and they are no loss."""


def main() -> int:
    """Run until told to stop. Returns the exit status."""
    return serve("derive", run)


def run(settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
    """Derive until it is time to stop."""
    heartbeat.beat("starting", {})
    check_contract(settings)
    while not stopping.is_set():
        try:
            derive_on(settings, heartbeat, stopping)
        except RetentionError as error:
            derive_from_archive(settings, heartbeat, error)


def derive_from_archive(settings: Settings, heartbeat: Heartbeat, error: RetentionError) -> None:
    """Derive from the raw archive what Kafka has let go of. Killed anywhere, the next life goes on with it.

    Raises HoleError, with the command, where the archive lacks something, and TransientError if Kafka lacks nothing.
    """
    from changelog.rebuild import rebuild  # which is made of what is here

    log.warning("%s: it is derived from the archive", error)
    heartbeat.beat("rebuilding", {"error": f"{error}: it is derived from the archive"})
    done = rebuild(settings)
    if not done:
        raise TransientError(f"{error}, and nothing is missing; looking again") from error
    log.warning("derived from the archive: %s", ", ".join(f"{missed} ({number} records)" for missed, number in
                                                          done.items()))  # fmt: skip


def derive_on(settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
    """Derive from Kafka until it is time to stop. Raises RetentionError if Kafka has let go of what comes next."""
    with Deriver(settings) as deriver:
        positions = where_to_begin(settings)
        log.info("going on at %s", json.dumps(to_json(positions)))
        deriver.begin(positions)
        checked = time.monotonic()
        while not stopping.is_set():
            heartbeat.beat("running", deriver.detail())
            deriver.step()
            deriver.bury()
            if time.monotonic() - checked > CONTRACT_CHECK_SECONDS:
                check_contract(settings)
                checked = time.monotonic()
        heartbeat.beat("stopping", deriver.detail())


class Deriver:
    """The one writer of the derived topics: a new one fences the one before. Use as a context manager.

    Raises TransientError if Kafka does not take part; a new one goes on where the last committed transaction ended.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer = Producer({
            **settings.kafka.client(), "transactional.id": GROUP, "log_level": 3,
            "compression.type": "lz4", "linger.ms": 5, "batch.size": 512 * 1024,
            "message.max.bytes": MAX_DERIVED_BYTES, "queue.buffering.max.kbytes": 262_144,
        })  # fmt: skip
        self._changes = Changes(settings, state(settings))
        self._watched = Watched(settings)
        self._changes.erased = self._watched.now()
        with ops.connect(settings) as connection:
            row = connection.execute(
                "SELECT max(erasure) AS last FROM erasures WHERE derived_at IS NOT NULL"
            ).fetchone()
        self._buried: int = (row and row["last"]) or 0
        self._reader: Reader | None = None
        self._committed: Vector = {}
        self._committed_at = self._kept_at = time.monotonic()
        self._counts = {"records": 0, "changes": 0, "patches": 0}
        with answering(settings):
            self._producer.init_transactions(TIMEOUT)  # ends what a killed one has left open

    def begin(self, positions: Vector) -> None:
        """Read the changelog from ``positions`` on."""
        self._reader = Reader(self._settings, positions, group=GROUP)
        self._committed = {topic: dict(partitions) for topic, partitions in positions.items()}

    def step(self) -> int:
        """Take what is there, or wait a second for it, and write what follows from it, in one transaction. Returns how
        many records it took. Raises RetentionError if Kafka has let go of what it would take next."""
        reader = self._reader
        if reader is None:
            raise ValueError("it has not begun")
        entries = reader.read(1.0, self._settings.derive.max_records, self._settings.derive.trigger_seconds)
        moved = reader.positions != self._committed
        waited = time.monotonic() - self._committed_at > BEHIND_MARKERS_SECONDS
        if entries or (moved and waited) or self._keeps():
            self.write(entries, reader.positions, reader.group())
        return len(entries)

    def bury(self) -> int:
        """Write what takes away the newest versions of guests who were erased since; nothing of theirs is derived from
        then on. Returns how many versions there were. Killed on the way, the next one finds what is left."""
        erased, reader = self._watched.now(), self._reader
        if erased.number <= self._buried or reader is None:
            return 0
        self._changes.erased = erased
        await_own(self._settings, [latest_topic(entity) for entity in DERIVED])
        made = [
            burial(entity, update.partition, update.ref, reader.positions[topic_of(entity)][update.partition],
                   erased.number)
            for entity in DERIVED
            for update in updates(self._settings, entity, follow=False)
            if update.version and erased.has(guest_ref(entity, {"current": update.version.current}))
        ]  # fmt: skip
        if made:
            with answering(self._settings):
                self._producer.begin_transaction()
                for one in made:
                    self._produce(one)
                faults.point("derive.buried")
                self._producer.commit_transaction(TIMEOUT)
        with ops.connect(self._settings) as connection:
            connection.execute(
                "UPDATE erasures SET derived_at = now() WHERE erasure <= %s AND derived_at IS NULL", (erased.number,)
            )
        self._buried = erased.number
        log.info("%d newest versions of erased guests are taken away", len(made))
        return len(made)

    def write(self, entries: list[Entry], positions: Vector, group: object) -> None:
        """Write what follows from ``entries``, and that the log is read up to ``positions``: both or neither."""
        changes = self._changes.of(entries)
        faults.point("derive.judged")
        made = [derived for change in changes for derived in derive(change)]
        with answering(self._settings):
            self._producer.begin_transaction()
            for one in made:
                self._produce(one)
            faults.point("derive.produced")
            send_offsets(self._producer, self._news(positions), group)
            faults.point("derive.before-commit")
            self._producer.commit_transaction(TIMEOUT)
        faults.point("derive.after-commit")
        self._committed = {topic: dict(partitions) for topic, partitions in positions.items()}
        self._committed_at = time.monotonic()
        if self._keeps():
            self._kept_at = self._committed_at
        self._counts["records"] += len(entries)
        self._counts["changes"] += len(changes)
        self._counts["patches"] += len(made) - len(changes)

    def remember(self, topic: str, partition: int, entries: Iterable[list[Entry]]) -> None:
        """Let ``entries`` be what was appended in the horizon before that which comes next in a topic-partition:
        nothing follows from them but which of those are copies."""
        self._changes.begin(topic, partition, 0)
        for some in entries:
            self._changes.of(some)

    def _news(self, positions: Vector) -> list[TopicPartition]:
        """Offsets to be committed: those that have changed, and from time to time all, so that none is forgotten."""
        every = self._keeps()
        return [
            TopicPartition(topic, partition, offset)
            for topic, partitions in positions.items()
            for partition, offset in partitions.items()
            if every or self._committed.get(topic, {}).get(partition) != offset
        ]

    def _keeps(self) -> bool:
        """Whether it is time to commit all offsets again."""
        return time.monotonic() - self._kept_at > KEPT_SECONDS

    def _produce(self, one: Derived) -> None:
        while True:
            try:
                self._producer.produce(
                    one.topic, key=one.key, value=one.value, partition=one.partition, headers=one.source.headers()
                )
                break
            except BufferError:  # more than it holds
                self._producer.poll(0.1)
        self._producer.poll(0)

    def detail(self) -> dict[str, Any]:
        """What the heartbeat says: ``committed``, the position, and counts since the start."""
        return {"committed": to_json(self._committed), **self._counts}

    def __enter__(self) -> "Deriver":
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        self._changes.close()


def await_own(settings: Settings, topics: Sequence[str]) -> None:
    """Wait until all that was acknowledged in topics can be read. Kafka makes a transaction readable a moment after it
    has answered that it is committed. Raises TransientError if that moment does not come."""
    deadline = time.monotonic() + TIMEOUT
    while not covers(end_offsets(settings, topics), acknowledged_offsets(settings, topics)):
        if time.monotonic() > deadline:
            raise TransientError(f"a transaction is open in one of {', '.join(topics)}: nobody else may write there")
        time.sleep(0.05)


def state(settings: Settings) -> Path:
    """Directory of what the service keeps: identities, and which topics they are of."""
    return settings.home / "derive"


def where_to_begin(settings: Settings) -> Vector:
    """The position up to which everything is derived: what the group has committed, or, where Kafka has forgotten that,
    behind the newest record that something in the derived topics is from; 0 in a log of which nothing is gone.

    To be asked by whoever has fenced the one before. Raises RetentionError where Kafka begins behind that position,
    ContractError where it ends before it.
    """
    positions, gone = known_positions(settings), []
    starts, ends = start_offsets(settings, SOURCES), end_offsets(settings, SOURCES)
    for topic, partitions in starts.items():
        for partition, start in partitions.items():
            at = positions[topic][partition]
            if at < start:
                gone.append(f"{topic}/{partition} from {at} to {start - 1}")
            elif at > ends[topic][partition]:
                raise ContractError(
                    f"{topic}/{partition} ends at {ends[topic][partition]}, and up to {at} it was derived: it was made "
                    "anew. Restore the topic, or begin a new home and fill its topics by replay"
                )
    if gone:
        raise RetentionError(f"Kafka does not have {', '.join(gone)} any more, and it was not derived")
    return positions


def known_positions(settings: Settings) -> Vector:
    """For every topic-partition, the offset up to which everything is derived; 0 where that is not known.

    Where it is not what was committed, the identities of that partition are put away: they may have forgotten what
    they were told to forget later on.
    """
    committed, written = committed_offsets(settings, GROUP, SOURCES), newest_sources(settings)
    positions: Vector = {}
    for topic in SOURCES:
        for partition in range(settings.kafka.partitions):
            known, behind = committed.get(topic, {}).get(partition), written.get(topic, {}).get(partition, -1) + 1
            at = positions.setdefault(topic, {})[partition] = max(known or 0, behind)
            if at != known:
                shutil.rmtree(state(settings) / f"{topic}-{partition}", ignore_errors=True)
            if known is not None and at != known:
                log.warning("%s/%d: committed is %d, and up to %d it is derived", topic, partition, known, at)
    return positions


def newest_sources(settings: Settings) -> Vector:
    """The offset of the newest record of the changelog that something in the derived topics is from."""
    newest: Vector = {}
    for entity in DERIVED:
        topics = (latest_topic(entity), patch_topic(entity))
        starts, ends = start_offsets(settings, topics), end_offsets(settings, topics)
        span = 1_000
        looking = {(topic, partition) for topic in topics for partition in starts[topic]}
        while looking:
            since: Vector = {}
            for topic, partition in looking:
                since.setdefault(topic, {})[partition] = max(starts[topic][partition], ends[topic][partition] - span)
            until = {topic: {p: ends[topic][p] for p in partitions} for topic, partitions in since.items()}
            with Reader(settings, since, wait_ms=50) as reader:
                for entries in reader.read_to(until):
                    for entry in entries:
                        source = source_of(entry)
                        of = newest.setdefault(source.topic, {})
                        of[source.partition] = max(source.offset, of.get(source.partition, -1))
                        looking.discard((entry.topic, entry.partition))
            looking = {place for place in looking if since[place[0]][place[1]] > starts[place[0]][place[1]]}
            span *= 10
    return newest


def check_contract(settings: Settings) -> None:
    """Raise ContractError if a topic is not as agreed, or another one than when the service first ran; note which they
    are, the first time."""
    with answering(settings):
        check_topics(settings, derived_topics(settings))
        now = topic_ids(settings, (*SOURCES, *derived_topics(settings)))
    path = state(settings) / "topic-ids.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(now))
        new.replace(path)
        return
    then: dict[str, str] = json.loads(path.read_text())
    for topic, identity in now.items():
        if then.get(topic, identity) != identity:
            remedy = (
                "restore the topic, or begin a new home and fill its topics by replay"
                if topic in SOURCES
                else "what it held is lost; make all derived topics anew: anabranch latest rebuild --anew"
            )
            raise ContractError(f"{topic} was made anew (id {then[topic]} became {identity}): {remedy}")


if __name__ == "__main__":
    sys.exit(main())
