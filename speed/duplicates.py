"""Duplicates within the horizon, told by the log itself. Runs in Spark's Python workers.

For each topic-partition there is a store of the identities seen: identity and offset of the record that survives →
append time of its newest copy. A change is a duplicate iff its identity is there with a lower offset and a copy at most
the horizon before it, by the broker's time.

The store is a cache of the log. Asked again, as when an epoch is replayed, it gives the same answers: what a record
was compared with is kept until a later epoch runs. One that is behind (lost, moved, or taken back by a power cut) reads
what it lacks from Kafka. So nothing has to agree with Spark's checkpoint, and an epoch's cost follows its own records:
Spark's own duplicate detection shuffles them whole and looks through all its state once an epoch.
"""

import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from changelog.classify import CHANGE, DUPLICATE, RECORD, classify_batch
from changelog.topics import offsets_at
from runtime.errors import TransientError

SLACK_SECONDS = 600
"""How much longer than the horizon an identity is kept: for a broker's clock that goes back a little."""

SILENCE_SECONDS = 20.0

WORTH_ASKING = 10_000
"""Fewer offsets are read faster than Kafka is asked where the horizon begins: transactions leave gaps of one."""

MAP_BYTES = 1 << 33
"""The most a store can grow to; the file grows as it is needed."""

Row = tuple[int, int, bytes]
"""offset, append time in microseconds, digest of the identity."""

_POSITION = struct.Struct(">q")
_NEXT = b"next"


def digest(key: bytes | None, service: str, identifier: str) -> bytes:
    """16 bytes that stand for an identity within its topic-partition."""
    parts = (key or b"", service.encode(), identifier.encode())
    return hashlib.blake2b(b"".join(struct.pack(">I", len(p)) + p for p in parts), digest_size=16).digest()


class Identities:
    """The store of one topic-partition. One process writes at a time; LMDB sees to that."""

    def __init__(self, path: Path, horizon_seconds: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        # metasync: a power cut may take the last transactions back, as a whole; then the store is behind
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=3, metasync=False)
        self._env.reader_check()  # a worker that was killed while it read would keep old pages
        self._seen, self._ages, self._about = (self._env.open_db(name) for name in (b"seen", b"ages", b"about"))
        self._horizon = horizon_seconds * 1_000_000
        self._kept = self._horizon + SLACK_SECONDS * 1_000_000

    def close(self) -> None:
        """Give the files back."""
        self._env.close()

    def next(self) -> int | None:
        """The offset after the last one that the store has seen; None if it is new."""
        with self._env.begin(db=self._about) as transaction:
            found = transaction.get(_NEXT)
        return None if found is None else _POSITION.unpack(found)[0]

    def count(self) -> int:
        """How many identities are there."""
        with self._env.begin() as transaction:
            return int(transaction.stat(db=self._seen)["entries"])

    def forget(self, time: int) -> None:
        """Drop what no record appended at or after ``time`` (microseconds) can be a copy of.

        To be called with the first record of an epoch: what is dropped then, a replay of this epoch does not ask for.
        """
        limit = _POSITION.pack(max(0, time - self._kept))
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor(db=self._ages)
            cursor.first()
            while (name := cursor.key()) and name[:8] < limit:
                transaction.delete(name[8:], db=self._seen)
                cursor.delete()

    def mark(self, rows: list[Row], end: int) -> list[bool]:
        """For each row, in the order of offsets, whether it is a duplicate; note them, and that the log is seen up to
        ``end``. Asking again gives the same answers."""
        answers = []
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor(db=self._seen)
            for offset, time, identity in rows:
                first = last = None
                there = cursor.set_range(identity + _POSITION.pack(offset + 1))
                if (cursor.prev() if there else cursor.last()) and cursor.key()[:16] == identity:
                    first = _POSITION.unpack(cursor.key()[16:])[0]
                    last = _POSITION.unpack(cursor.value())[0]
                if first is None or last is None or (first != offset and time - last > self._horizon):
                    first, last = offset, None
                answers.append(first != offset)
                if last is None or time > last:
                    name = identity + _POSITION.pack(first)
                    if last is not None:
                        transaction.delete(_POSITION.pack(last) + name, db=self._ages)
                    transaction.put(name, _POSITION.pack(time), db=self._seen)
                    transaction.put(_POSITION.pack(time) + name, b"", db=self._ages)
            known = transaction.get(_NEXT, db=self._about)
            if known is None or _POSITION.unpack(known)[0] < end:
                transaction.put(_NEXT, _POSITION.pack(end), db=self._about)
        return answers


_open: dict[Path, Identities] = {}
_consumers: dict[str, Consumer] = {}
"""Stores and consumer of this worker; Spark uses a worker for many epochs."""


def identities(path: Path, horizon_seconds: int) -> Identities:
    """The store at ``path``, opened once in each process."""
    if path not in _open:
        _open[path] = Identities(path, horizon_seconds)
    return _open[path]


def judge(
    bootstrap: str, directory: Path, horizon_seconds: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs: classify records (``RECORD_DDL`` → ``CLASSIFIED_DDL``) and tell duplicates.

    The records of a topic-partition come in the order of their offsets. A store of a new generation reads what lies
    before it as well, so it knows every copy within the horizon from its first record on. Raises TransientError if a
    store is behind and Kafka does not answer.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun: set[tuple[str, int]] = set()
        for batch in batches:
            classified = classify_batch(batch)
            columns = {name: classified.column(name).to_pylist() for name in ("topic", "kafka_partition", "kind")}
            kinds: list[str] = columns["kind"]
            places: dict[tuple[str, int], list[int]] = {}
            for number, place in enumerate(zip(columns["topic"], columns["kafka_partition"], strict=True)):
                places.setdefault(place, []).append(number)
            rows = _rows(classified)
            for (topic, partition), numbers in places.items():
                store = identities(directory / f"{topic}-{partition}", horizon_seconds)
                if (topic, partition) not in begun:
                    first, appended = rows[numbers[0]][0], rows[numbers[0]][1]
                    _catch_up(bootstrap, store, topic, partition, first, appended, horizon_seconds)
                    store.forget(appended)
                    begun.add((topic, partition))
                changes = [number for number in numbers if kinds[number] == CHANGE]
                answers = store.mark([rows[number] for number in changes], rows[numbers[-1]][0] + 1)
                for number, duplicate in zip(changes, answers, strict=True):
                    if duplicate:
                        kinds[number] = DUPLICATE
            position = classified.schema.get_field_index("kind")
            yield classified.set_column(position, "kind", pa.array(kinds, pa.string()))

    return run


def _rows(classified: pa.RecordBatch) -> list[Row]:
    """Offset, time and identity of every record; what is not a change has an identity that is never asked for."""
    names = ("kafka_offset", "key", "service_name", "identifier")
    columns: list[list[Any]] = [classified.column(name).to_pylist() for name in names]
    times = classified.column("append_time").cast(pa.int64()).to_pylist()
    return [
        (offset, time, b"" if identifier is None else digest(key, service, identifier))
        for offset, time, key, service, identifier in zip(columns[0], times, *columns[1:], strict=True)
    ]


def _catch_up(
    bootstrap: str,
    store: Identities,
    topic: str,
    partition: int,
    first: int,
    appended: int,
    horizon_seconds: int,
) -> None:
    """Show the store what it lacks of the log before ``first``, as far back as the horizon reaches."""
    known = store.next()
    reached = 0 if known is None else known
    if reached >= first:
        return
    if first - reached > WORTH_ASKING:
        back = appended // 1_000_000 - horizon_seconds - SLACK_SECONDS
        since = offsets_at(bootstrap, topic, partition, datetime.fromtimestamp(max(0, back), UTC))
        reached = max(reached, since)
    for batch in _read(bootstrap, topic, partition, reached, first):
        classified = classify_batch(batch)
        rows = _rows(classified)
        changes = [row for row, kind in zip(rows, classified.column("kind").to_pylist(), strict=True) if kind == CHANGE]
        store.mark(changes, rows[-1][0] + 1)
    store.mark([], first)


def _read(bootstrap: str, topic: str, partition: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The committed records of a topic-partition with ``first`` <= offset < ``end``; ``end`` is a record's offset."""
    consumer = _consumer(bootstrap)
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


def _consumer(bootstrap: str) -> Consumer:
    """This worker's consumer; making one takes longer than reading what lies between two transactions."""
    if bootstrap not in _consumers:
        _consumers[bootstrap] = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "anabranch-identities",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 3,
            }
        )
    return _consumers[bootstrap]
