"""The newest version of every entity, for consumers: ``latest.<entity>`` from its beginning, and then as it grows.

Kafka keeps of each key of a compacted topic the last record, and drops the deletes (tombstones) among them when they
are older than the topic's ``delete.retention.ms``. So whoever reads from the beginning to the end within that time has
every entity as it is; whoever is slower may have read a version whose delete was dropped before he came to it. The
reader here measures that and begins anew where it would be so: what it gives is right, or is taken back.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from changelog.derived import latest_topic, source_of
from changelog.envelope import Entity
from changelog.exact import parse
from changelog.positions import Vector, covers
from changelog.reader import Entry, Reader
from changelog.topics import TIMEOUT, admin, start_offsets
from runtime.errors import ContractError, RetentionError, TerminalError, TransientError
from runtime.settings import Settings

MARGIN = 0.9
"""Of ``delete.retention.ms``: our clock and the broker's are not the same."""

ASK_SECONDS = 60.0
ATTEMPTS = 3


class Version(NamedTuple):
    """An entity as the log last said it is. Numbers with a fraction are Decimals. ``offset`` and ``partition`` are
    those of the record of the changelog that said so, ``service`` and ``identifier`` its provenance."""

    current: Entity
    offset: int
    service: str
    identifier: str
    partition: int


class Update(NamedTuple):
    """News of one entity: a version, or none once it is deleted. State is to be kept by (``partition``, ``ref``): an
    entity that changes its guest may be deleted in one partition and live in another."""

    ref: str
    partition: int
    offset: int
    time: int
    version: Version | None


class Batch(NamedTuple):
    """``anew``: what was given before is void, the topic is read from its beginning (so also in the first batch).
    ``caught_up``: everything that was there when the reading began has been given."""

    updates: list[Update]
    anew: bool
    caught_up: bool


class Latest:
    """Reads ``latest.<entity>``. Use as a context manager, or close it.

    Within a partition updates come in the order of the log, never an older version after a newer one. After each batch
    with ``caught_up`` the updates since the last ``anew``, folded, are the state of all entities at one moment or, for
    some of them, later.
    """

    def __init__(self, settings: Settings, entity: str) -> None:
        self._settings = settings
        self._topic = latest_topic(entity)
        self._reader: Reader | None = None
        self._attempts = 0
        self._limit = 0.0
        self._asked = self._sure = 0.0
        self._ends: Vector = {}
        self._last: dict[int, int] = {}
        self._caught_up = False

    def read(self, seconds: float) -> Batch:
        """What came within ``seconds``; returns as soon as there is something.

        Raises ContractError if the topic is not there or not ours, TerminalError if its beginning cannot be read to the
        end within ``delete.retention.ms``, TransientError if Kafka does not answer: the next call begins anew.
        """
        reader, anew = self._reader, False
        if reader is None:
            reader, anew = self._begin(), True
        try:
            entries = reader.read(min(seconds, self._limit / 4))
        except RetentionError:  # the topic was made anew
            return self._again()
        except TransientError:
            self.close()
            raise
        if time.monotonic() - self._sure > self._limit:
            return self._again()
        updates = [self._update(entry) for entry in entries]
        if updates and not self._in_order(updates):
            return self._again()
        if covers(reader.positions, self._ends):
            self._caught_up, self._sure, self._attempts = True, self._asked, 0
            if time.monotonic() - self._asked > min(ASK_SECONDS, self._limit / 4):
                self._ask(reader)
        return Batch(updates, anew, self._caught_up)

    def close(self) -> None:
        """Give the connections back."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> Reader:
        self._attempts += 1
        if self._attempts > ATTEMPTS:
            raise TerminalError(
                f"{self._topic} was not read from beginning to end within its delete.retention.ms "
                f"({self._limit / MARGIN:.0f} s), {ATTEMPTS} times: deletes would be missed; set delete.retention.ms "
                "of the topic higher, or give this reader more to work with"
            )
        self._limit = self._delete_retention() * MARGIN
        reader = self._reader = Reader(self._settings, start_offsets(self._settings, [self._topic]))
        self._last, self._caught_up = {}, False
        self._ask(reader)
        self._sure = self._asked
        return reader

    def _ask(self, reader: Reader) -> None:
        """Where the topic ends now. When that is reached, every delete up to now was seen, for none of them can have
        been dropped: ``_sure`` is the moment up to which that is so."""
        self._asked = time.monotonic()
        self._ends = reader.ends()

    def _again(self) -> Batch:
        self.close()
        self._begin()
        return Batch([], True, False)

    def _in_order(self, updates: list[Update]) -> bool:
        """Whether the sources of each partition go on; if not, it is another topic of the same name."""
        for update in updates:
            if update.offset < self._last.get(update.partition, -1):  # what is deleted as a guest is erased has one
                return False
            self._last[update.partition] = update.offset
        return True

    def _update(self, entry: Entry) -> Update:
        source = source_of(entry)
        ref = (entry.key or b"").decode()
        current = parse(entry.value) if entry.value else None
        said = Version(current, source.offset, source.service, source.identifier, source.partition) if current else None
        return Update(ref, entry.partition, source.offset, entry.time, said)

    def _delete_retention(self) -> float:
        """``delete.retention.ms`` of the topic, in seconds."""
        client = admin(self._settings)  # has to live as long as its futures
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            found = client.describe_configs([resource])[resource].result(TIMEOUT)
        except KafkaException as error:
            if error.args[0].retriable():
                raise TransientError(f"Kafka at {self._settings.kafka.bootstrap} does not answer: {error}") from error
            raise ContractError(f"topic {self._topic}: {error}; create it: anabranch up") from error
        return int(found["delete.retention.ms"].value) / 1000


def updates(settings: Settings, entity: str, follow: bool) -> Iterator[Update]:
    """The newest version of each entity that there is, and then, with ``follow``, what comes, for ever: to be folded by
    (``partition``, ``ref``), with nothing ever taken back. Where the reading had to begin anew, only what differs from
    what was given before, deletes included (those that were missed have offset -1). Errors as :meth:`Latest.read`."""
    given: dict[tuple[int, str], int] = {}
    news: dict[tuple[int, str], Update] = {}
    whole = False
    with Latest(settings, entity) as latest:
        while True:
            batch = latest.read(1.0)
            if batch.anew:
                news, whole = {}, True
            news |= {(update.partition, update.ref): update for update in batch.updates}
            if not batch.caught_up:
                continue
            if whole:
                news |= {name: Update(name[1], name[0], -1, 0, None) for name in given.keys() - news.keys()}
            for name, update in news.items():
                if update.version is None and given.pop(name, None) is not None:
                    yield update
                elif update.version is not None and given.get(name) != update.offset:
                    given[name] = update.offset
                    yield update
            news, whole = {}, False
            if not follow:
                return
