"""The one service that answers commands. Everything that a command leads to is one transaction of Kafka's.

State is rehydrated from the log at each start: what it last said of guests and orders, and which commands were
answered. So wherever it is killed, the next one goes on from what is committed: nothing is lost or done twice.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from changelog.commands.answered import Answered
from changelog.commands.decide import SERVICE, Command
from changelog.commands.outcome import Place
from changelog.commands.schema import COMMANDS, OUTCOMES, command_of, command_topic
from changelog.commands.transaction import ENTITIES, Known, Transaction
from changelog.erasures import Watched
from changelog.positions import Vector, covers, to_json
from changelog.producer import PARTITIONER
from changelog.reader import Entry, Reader
from changelog.said import Said
from changelog.topics import acknowledged_offsets, committed_offsets, end_offsets, start_offsets
from changelog.transactions import TIMEOUT, answering, send_offsets
from runtime import faults
from runtime.errors import RetentionError, TransientError
from runtime.settings import Settings, topic_of

log = logging.getLogger("commands")

GROUP = "anabranch-commands"
"""Consumer group, and transactional id: whoever begins fences the one before."""

TOPICS = tuple(command_topic(name) for name in COMMANDS)

TRANSACTION_MS = 30_000
"""After so long Kafka aborts what a killed service has left open, if no other has begun."""

MOST = 500
"""Commands in one transaction, at most."""

IDLE_SECONDS = 1.0

BY_KEY = -1
"""The partition that the key has."""


class Handler:
    """Answers commands. Use as a context manager. Raises TransientError if Kafka does not take part, or another one has
    taken over: the next one begins where the last committed transaction ended."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._own = (SERVICE, *settings.commands.succeeds)
        self._counts = {"accepted": 0, "rejected": 0, "repeated": 0}
        self._producer = Producer({
            **settings.kafka.client(), "transactional.id": GROUP, "partitioner": PARTITIONER,
            "transaction.timeout.ms": TRANSACTION_MS, "message.max.bytes": 16 * 1024 * 1024, "linger.ms": 2,
            "compression.type": "lz4", "log_level": 3,
        })  # fmt: skip
        with answering(settings):
            self._producer.init_transactions(TIMEOUT)  # ends what a killed one has left open
        self._answered = Answered(settings.home / "commands" / "answered")
        self._watched = Watched(settings)
        self._erased = self._watched.now()
        self._said = Said(settings, settings.home / "commands" / "said", ENTITIES, self._erased)
        self._known = Known(self._said)
        self._reader: Reader | None = None

    def begin(self, alive: Callable[[str], bool]) -> bool:
        """Rehydrate, and stand where the last one stood. Returns whether ``alive``, which is told what is waited for,
        wants it to go on."""
        settings = self._settings
        written = acknowledged_offsets(settings, [topic_of(entity) for entity in ENTITIES])
        while not covers(readable := end_offsets(settings, written), written):
            if not alive(f"a transaction is open, and what is behind it cannot be read: {_between(readable, written)}"):
                return False
            time.sleep(0.2)
        while True:
            try:
                self._known.catch_up()
                number = self._answered.fill(settings, self._erased)
                break
            except (TransientError, RetentionError) as error:  # it may take long: derive may have to go on first
                if not alive(str(error)):
                    return False
                time.sleep(1)
        positions = where_to_begin(settings)
        self._reader = Reader(settings, positions, group=GROUP)
        log.info("%d outcomes are known; going on at %s", number, to_json(positions))
        return True

    def step(self) -> int:
        """Take the commands that are there, or wait a second for some, and answer them. Returns how many they were."""
        reader = self._reader
        if reader is None:
            raise ValueError("it has not begun")
        if self._watched.now().number != self._erased.number:  # what is kept of the guest here goes with the files
            raise TransientError("a guest has been erased: it begins again without them")
        try:
            entries = reader.read(IDLE_SECONDS, MOST)
        except RetentionError as error:  # it was asleep for days
            raise TransientError(f"{error}; it begins again from what Kafka has") from error
        self._known.catch_up()
        if entries:
            faults.point("commands.read")
            self._answer(entries, reader)
        return len(entries)

    def _answer(self, entries: Sequence[Entry], reader: Reader) -> None:
        """Decide and write, all in one transaction."""
        made = Transaction(map(_command, entries), self._known, self._answered, self._own, self._erased)
        with answering(self._settings):
            self._producer.begin_transaction()
            places = self._produce(
                (topic_of(output.entity), output.guest.encode(), output.value, BY_KEY) for output in made.outputs
            )
            faults.point("commands.written")
            outcomes = made.outcomes(places)
            self._produce((OUTCOMES, key, outcome.encode(), outcome.source.partition) for key, outcome in outcomes)
            faults.point("commands.before-offsets")
            send_offsets(self._producer, _news(entries), reader.group())
            faults.point("commands.before-commit")
            self._producer.commit_transaction(TIMEOUT)
        faults.point("commands.after-commit")
        made.settle(places)
        for _, outcome in outcomes:
            self._counts["repeated" if outcome.repeats else outcome.status] += 1

    def _produce(self, records: Iterable[tuple[str, bytes | None, bytes, int]]) -> list[Place]:
        """Send records (topic, key, value, partition or BY_KEY) and wait until they are in; returns where."""
        places: dict[int, Place] = {}
        failed: list[KafkaError] = []

        def delivered(number: int) -> Callable[[KafkaError | None, Message], None]:
            def tell(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    failed.append(error)
                else:
                    places[number] = Place(message.topic() or "", message.partition() or 0, message.offset() or 0)

            return tell

        number = -1
        for number, (topic, key, value, partition) in enumerate(records):
            while True:
                try:
                    self._producer.produce(
                        topic, key=key, value=value, partition=partition, on_delivery=delivered(number)
                    )
                    break
                except BufferError:  # more than it holds
                    self._producer.poll(0.1)
        self._producer.flush(TIMEOUT)
        if failed or len(places) != number + 1:
            raise TransientError(
                f"Kafka at {self._settings.kafka.bootstrap} did not take {number + 1 - len(places)} records"
                + (f": {KafkaException(failed[0])}" if failed else "")
            )
        return [places[at] for at in range(number + 1)]

    def detail(self) -> dict[str, Any]:
        """What the heartbeat says: the position, and counts since the start."""
        position = {"committed": to_json(self._reader.positions)} if self._reader else {}
        return {**position, **self._counts, "waiting": None}

    def __enter__(self) -> "Handler":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # readers need not wait until the next one ends what is open
            with suppress(KafkaException):
                self._producer.abort_transaction(5)
        if self._reader is not None:
            self._reader.close()
        self._said.close()
        self._answered.close()


def where_to_begin(settings: Settings) -> Vector:
    """What the group has committed; where it has not, or Kafka has forgotten it, the beginning: what was answered is
    known. Commands that Kafka let go of before they were answered are told in the log."""
    committed = committed_offsets(settings, GROUP, TOPICS)
    positions = start_offsets(settings, TOPICS)
    for topic, partitions in positions.items():
        for partition, start in partitions.items():
            at = committed.get(topic, {}).get(partition, start)
            if at < start:
                log.error("%s/%d: Kafka let go of offsets %d to %d unread: send those commands again", topic, partition,
                          at, start - 1)  # fmt: skip
            partitions[partition] = max(at, start)
    return positions


def _command(entry: Entry) -> Command:
    source = Place(entry.topic, entry.partition, entry.offset)
    return Command(command_of(entry.topic), source, entry.time, entry.key, entry.value)


def _news(entries: Iterable[Entry]) -> list[TopicPartition]:
    """The offsets to be committed."""
    ends: dict[tuple[str, int], int] = {}
    for entry in entries:
        ends[entry.topic, entry.partition] = entry.offset + 1
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]


def _between(readable: Vector, written: Vector) -> str:
    return ", ".join(
        f"{topic}/{partition} from offset {readable[topic][partition]} on"
        for topic, partitions in written.items()
        for partition, end in partitions.items()
        if readable[topic][partition] < end
    )
