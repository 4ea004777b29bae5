"""A writer that keeps a journal of what it sent and of what Kafka acknowledged: a witness beside Kafka.

``python -m tests.faults.journal FILE --seed N --records K [--rate R] [--start TIME]`` is the same as a process, which
can be killed: what it had sent and not seen acknowledged is *unknown*, may be there or not, but not twice. At SIGTERM
it sends no more, and ends when all is acknowledged.

The journal is JSON lines: ``["p", PREFIX]`` keys with that prefix are written by nobody else; ``["s", NUMBER, TOPIC,
KEY, DIGEST, KIND, SERVICE, IDENTIFIER]`` a record that is about to be sent, and what it is meant to be;
``["a", NUMBER, PARTITION, OFFSET]`` where Kafka says it is. A line is written before what it speaks of goes out (sent),
or after it came in (acknowledged); with each batch of acknowledgements the file is brought to disk.
"""

import argparse
import hashlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from changelog.producer import PARTITIONER, Record
from changelog.sources.simulate import Shop
from runtime.settings import Settings

CHANGE, BAD, TOMBSTONE = "change", "bad", "tombstone"

Place = tuple[str, int, int]
"""Topic, partition, offset."""

FILE_NUMBERS = 10_000_000
"""A journal may have several files: the numbers of the n-th begin at n times that."""


def digest(value: bytes | None) -> str:
    """16 hex digits that stand for a content; no value and an empty one are the same (the archive cannot tell)."""
    return hashlib.sha256(value or b"").hexdigest()[:16]


class Sent(NamedTuple):
    """What the writer says of a record: ``kind`` is what it is meant to be (a copy is meant to be a change)."""

    topic: str
    key: bytes | None
    digest: str
    kind: str
    service: str | None = None
    identifier: str | None = None

    def __str__(self) -> str:
        return f"{self.topic} key {self.key!r} ({self.service}, {self.identifier})"


class Made(NamedTuple):
    """A record to be sent, and whether it is meant to be bad."""

    record: Record
    bad: bool = False


@dataclass
class Journal:
    """What writers noted. ``placed``: where Kafka said that a record is → its number. ``displaced``: where it had said
    so, and later gave the place to another one."""

    prefixes: set[bytes] = field(default_factory=set)
    sent: dict[int, Sent] = field(default_factory=dict)
    placed: dict[Place, int] = field(default_factory=dict)
    displaced: list[tuple[Place, int]] = field(default_factory=list)

    def owns(self, key: bytes | None) -> bool:
        """Whether only the journal's writers write records of this key."""
        return any((key or b"").startswith(prefix) for prefix in self.prefixes)

    def unknown(self) -> Counter[tuple[str, bytes | None, str]]:
        """(topic, key, digest) of what was sent and not acknowledged, and how often."""
        known = {*self.placed.values(), *(number for _, number in self.displaced)}
        return Counter((one.topic, one.key, one.digest) for number, one in self.sent.items() if number not in known)


def read_journal(directory: Path) -> Journal:
    """All files of a journal. The last line of each may be cut off, as a killed writer leaves it."""
    journal = Journal()
    for number, path in enumerate(sorted(directory.glob("*.jsonl"))):
        base = number * FILE_NUMBERS
        lines = path.read_text().split("\n")
        for line in lines[:-1]:
            kind, *rest = json.loads(line)
            if kind == "p":
                journal.prefixes.add(rest[0].encode())
            elif kind == "s":
                at, topic, key, content, meant, service, identifier = rest
                journal.sent[base + at] = Sent(
                    topic, None if key is None else bytes.fromhex(key), content, meant, service, identifier
                )
            else:
                at, topic_partition, offset = rest
                place = journal.sent[base + at].topic, topic_partition, offset
                if place in journal.placed:
                    journal.displaced.append((place, journal.placed[place]))
                journal.placed[place] = base + at
    return journal


class JournalledWriter:
    """Sends records and journals them. Use as a context manager: leaving it waits until all is acknowledged or failed.

    What Kafka refuses or does not answer for stays unknown, and ``failed`` counts it. ``rate``: records a second.
    """

    def __init__(self, settings: Settings, path: Path, prefixes: Iterable[str], rate: float = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("x")
        self._producer = Producer({
            **settings.kafka.client(), "enable.idempotence": True, "acks": "all", "log_level": 3,
            "partitioner": PARTITIONER, "linger.ms": 5, "message.max.bytes": 16 * 1024 * 1024,
            "delivery.timeout.ms": 240_000, "queue.buffering.max.kbytes": 262_144, "compression.type": "lz4",
        })  # fmt: skip
        self._rate, self._began = rate, time.monotonic()
        self.sent = self.acknowledged = self.failed = 0
        for prefix in prefixes:
            self._note("p", prefix)

    def send(self, made: Made) -> None:
        """Journal one record and hand it over."""
        number, record = self.sent, made.record
        key = None if record.key is None else record.key.hex()
        self._note("s", number, record.topic, key, digest(record.value), *meant(made))
        self._file.flush()
        if self._rate:
            ahead = self._began + self.sent / self._rate - time.monotonic()
            self._producer.poll(max(0.0, ahead))
            time.sleep(max(0.0, self._began + self.sent / self._rate - time.monotonic()))
        while True:
            try:
                self._producer.produce(
                    record.topic, key=record.key, value=record.value, on_delivery=partial(self._delivered, number)
                )
                break
            except BufferError:  # Kafka is away
                self._producer.poll(0.1)
        self.sent += 1
        if self._producer.poll(0) or self.sent % 1000 == 0:
            self._to_disk()

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            return
        self.acknowledged += 1
        self._note("a", number, message.partition(), message.offset())

    def _note(self, *what: object) -> None:
        self._file.write(json.dumps(what) + "\n")

    def _to_disk(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> "JournalledWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.flush(240)
        self._to_disk()
        self._file.close()


def meant(made: Made) -> tuple[str, str | None, str | None]:
    """(kind, service, identifier) of a record, as its writer means it."""
    if not made.record.value:
        return TOMBSTONE, None, None
    if made.bad:
        return BAD, None, None
    provenance = json.loads(made.record.value)["provenance"]
    return CHANGE, provenance["serviceName"], provenance["identifier"]


def shop_records(seed: int, records: int, rate: float = 50, start: str | None = None) -> Iterator[Made]:
    """A shop with duplicates, late events, broken records and tombstones."""
    broken = f"{seed}-broken-".encode()
    shop = Shop(seed, start=start, duplicates=0.05, late=0.05, broken=0.02, rate=rate)
    for record in shop.records(records):
        yield Made(record, bad=(record.key or b"").startswith(broken))


def shop_prefixes(seed: int) -> tuple[str, str]:
    """What the keys of :func:`shop_records` begin with."""
    return f"guest-{seed}-", f"{seed}-broken-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--start")
    arguments = parser.parse_args()
    seed = arguments.seed
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with JournalledWriter(Settings(), arguments.file, shop_prefixes(seed), arguments.rate) as writer:
        for made in shop_records(seed, arguments.records, arguments.rate or 50, arguments.start):
            if over.is_set():
                break
            writer.send(made)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has ended, as it would be told to
    print(json.dumps({"sent": writer.sent, "acknowledged": writer.acknowledged, "failed": writer.failed}))


if __name__ == "__main__":
    main()
