"""Mended dead letters go back to the log, each once: also when it is done twice, at once, or killed half way.

What is about to be sent is noted first, with its identity; then it is sent, in a transaction of Kafka's; then it is
noted where it went. Whoever comes after a crash looks for what was noted and perhaps sent in the whole log. That tells
for good, because the next one has the same transactional id: Kafka has aborted what was open, and lets nothing of it in
any more. One replay goes on at a time.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import psycopg
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from changelog.dead_letters import HEADER, Mended, Refused, mended
from changelog.erased import NOBODY, Erased
from changelog.erasures import recorded
from changelog.positions import Vector
from changelog.producer import PARTITIONER
from changelog.records import Identity, Place
from changelog.sources.checked import IS_ERASED
from runtime import faults, ops
from runtime.errors import TransientError
from runtime.settings import Settings, entity_of
from serving.dead_letters import appended
from serving.letter_notes import Note, Notes
from serving.whole_log import Change, EntityKey, chunks, find_changes

TRANSACTIONAL_ID = "anabranch-dead-letters"
TIMEOUT = 60.0
IN_ONE = 500
"""Records of one transaction, at most."""

Tell = Callable[[int, str], None]
"""Called with the number of a line and what there is to say of it, before anything is sent."""


@dataclass
class Replayed:
    """``replayed``: dead letters that were sent. ``already``: lines whose dead letter, or whose change, is in the log
    already. ``refused``: lines that stay as they are. ``ends``: next offsets after what was sent."""

    replayed: int = 0
    already: int = 0
    refused: int = 0
    ends: Vector = field(default_factory=dict)


class Moment(NamedTuple):
    """A place in the log, and when it was appended there."""

    place: Place
    time: datetime

    def is_after(self, other: "Moment") -> bool:
        """By offset within a partition; between partitions only the time can say."""
        if self.place[:2] == other.place[:2]:
            return self.place.offset > other.place.offset
        return self.time > other.time


def replay(settings: Settings, lines: Iterable[tuple[int, bytes]], tell: Tell, superseded: bool = False) -> Replayed:
    """Send what is mended of numbered lines and is not in the log yet, in the order of the dead letters.

    ``superseded``: also where the log has said something newer of the same entity; the mended version then stands as
    the newest. Waits for a replay that is going on. A second call sends nothing more; one after a crash sends the rest.

    Raises TransientError if Kafka, Trino or the operations database does not answer; the same call goes on then.
    """
    try:
        with ops.connect(settings) as connection, ops.replay_lock(connection):
            asked = Lines(lines, recorded(settings, connection))
            producer = _producer(settings)  # from here on nothing arrives any more that an earlier one has sent
            notes = Notes(connection)
            to_send, copies = _judge(settings, asked, notes, superseded)
            for number, text in sorted(asked.said):
                tell(number, text)
            done = Replayed(already=asked.already, refused=asked.refused)
            for some in chunks(to_send, IN_ONE):
                notes.begin(some)
                faults.point("replay.noted")
                sent = _send(settings, producer, [one for one, _ in some])
                faults.point("replay.committed")
                notes.sent(sent)
                done.replayed += len(sent)
                for topic, partition, offset in sent.values():
                    ends = done.ends.setdefault(topic, {})
                    ends[partition] = max(ends.get(partition, 0), offset + 1)
            where = {note.identity: note.to for note in notes.done()}
            notes.begin(copies)
            notes.sent({one.place: to for one, _ in copies if (to := where.get(one.identity))})
    except psycopg.Error as error:
        raise TransientError(f"the operations database did not answer ({error}); run this again") from error
    return done


class Lines:
    """The lines of a call, one for each dead letter, and what there is to say of them."""

    def __init__(self, lines: Iterable[tuple[int, bytes]], erased: Erased = NOBODY) -> None:
        self.by_place: dict[Place, tuple[int, Mended | Refused]] = {}
        self.said: list[tuple[int, str]] = []
        self.already = self.refused = 0
        for number, line in lines:
            one = mended(line)
            if isinstance(one, Mended) and erased.has(one.record.key):
                one = Refused(one.place, IS_ERASED)
            if one.place is None:
                self.refuse(number, one.reason)
            elif one.place in self.by_place:
                self.refuse(number, f"line {self.by_place[one.place][0]} is of the same dead letter, {one.place}")
            else:
                self.by_place[one.place] = number, one

    def mended(self) -> list[Mended]:
        """What could be sent."""
        return [one for _, one in self.by_place.values() if isinstance(one, Mended)]

    def known(self, number: int, text: str = "") -> None:
        """Note that a line's change is in the log already, or will be by another line."""
        self.already += 1
        self.said += [(number, text)] if text else []

    def refuse(self, number: int, reason: str) -> None:
        """Note that a line stays as it is."""
        self.refused += 1
        self.said.append((number, f"refused: {reason}"))


Letter = tuple[Mended, datetime]
"""With the time when the dead letter was appended."""


def _judge(settings: Settings, asked: Lines, notes: Notes, superseded: bool) -> tuple[list[Letter], list[Letter]]:
    """What is to be sent, and letters that are copies of some of it. What is in the log already is noted."""
    letters = asked.mended()
    identities = {note.identity for note in notes.open()} | {one.identity for one in letters}
    changes = find_changes(settings, identities, {_entity(one) for one in letters if _has_versions(one)})
    places = {change.identity: change.place for change in reversed(changes)}  # the lowest offset survives
    notes.settle(places)
    times = appended(settings, [place for place in asked.by_place if notes.get(place) is None])
    versions = newest(changes, places, notes.done())
    to_send: dict[Identity, tuple[int, Letter]] = {}
    copies: list[Letter] = []
    for place, (number, one) in sorted(asked.by_place.items()):
        newer = versions.get(_entity(one)) if isinstance(one, Mended) and not superseded else None
        if notes.get(place) is not None:
            asked.known(number)
        elif isinstance(one, Refused):
            asked.refuse(number, one.reason)
        elif place not in times:
            asked.refuse(number, f"there is no dead letter at {place}, as far as the layers have come")
        elif there := places.get(one.identity):
            asked.known(number, f"already in the log: {there} has its service and identifier")
            notes.begin([(one, times[place])])
            notes.sent({place: there})
        elif same := to_send.get(one.identity):
            if one.record == same[1][0].record:
                asked.known(number, f"a copy of line {same[0]}")
                copies.append((one, times[place]))
            else:
                asked.refuse(number, f"line {same[0]} has its service and identifier, and says something else")
        elif newer is not None and newer[0].is_after(Moment(place, times[place])):
            asked.refuse(number, _superseded(one, newer[1]))
        else:
            to_send[one.identity] = number, (one, times[place])
    return [letter for _, letter in to_send.values()], copies


def _has_versions(one: Mended) -> bool:
    return entity_of(one.identity.topic) != "event"


def _entity(one: Mended) -> EntityKey:
    return one.identity.topic, one.identity.key, one.ref


def newest(
    changes: Sequence[Change], places: Mapping[Identity, Place], notes: Iterable[Note]
) -> dict[EntityKey, tuple[Moment, Change]]:
    """The newest version of each entity. What was a dead letter belongs where that was; a copy says nothing new."""
    letters = {note.to: Moment(note.place, note.append_time) for note in notes}
    found: dict[EntityKey, tuple[Moment, Change]] = {}
    for change in changes:
        if entity_of(change.identity.topic) == "event" or places[change.identity] != change.place:
            continue
        moment = letters.get(change.place, Moment(change.place, change.append_time))
        known = found.get(change.entity)
        if known is None or moment.is_after(known[0]):
            found[change.entity] = moment, change
    return found


def _superseded(one: Mended, newer: Change) -> str:
    _, _, service, identifier = newer.identity
    return (
        f"{entity_of(one.identity.topic)} {one.ref} has changed since ({newer.place}: {service}, {identifier}); "
        "replayed now, this version would stand as the newest. Change it where it is written, or say --superseded"
    )


def _producer(settings: Settings) -> Producer:
    """A producer that has ended what an earlier one left open."""
    producer = Producer({
        **settings.kafka.client(), "transactional.id": TRANSACTIONAL_ID, "partitioner": PARTITIONER,
        "compression.type": "lz4", "message.max.bytes": 16 * 1024 * 1024, "log_level": 3,
    })  # fmt: skip
    with _answering(settings):
        producer.init_transactions(TIMEOUT)
    return producer


def _send(settings: Settings, producer: Producer, letters: Sequence[Mended]) -> dict[Place, Place]:
    """Send records in one transaction, each with the place of the dead letter that it was. Returns where each went."""
    sent: dict[Place, Place] = {}
    failed: list[str] = []

    def delivered(place: Place) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(f"{place}: {error}")
            else:
                sent[place] = Place(message.topic() or "", message.partition() or 0, message.offset() or 0)

        return note

    with _answering(settings), _transaction(producer):
        for one in letters:
            topic, key, value = one.record
            headers: list[tuple[str, str | bytes | None]] = [(HEADER, str(one.place))]
            producer.produce(topic, key=key, value=value, headers=headers, on_delivery=delivered(one.place))
        producer.flush(TIMEOUT)
        faults.point("replay.produced")
        if failed or len(sent) < len(letters):
            raise TransientError(f"Kafka did not take all of it, so nothing of it is in: {failed or 'silence'}")
    return sent


@contextlib.contextmanager
def _transaction(producer: Producer) -> Iterator[None]:
    """All that is produced within is in the log afterwards; nothing of it if anything is raised."""
    producer.begin_transaction()
    try:
        yield
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                producer.commit_transaction(TIMEOUT)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
    except BaseException:
        with contextlib.suppress(KafkaException):  # fenced, or away: then Kafka aborts it
            producer.abort_transaction(TIMEOUT)
        raise


@contextlib.contextmanager
def _answering(settings: Settings) -> Iterator[None]:
    """Raises TransientError for what Kafka does not do."""
    try:
        yield
    except KafkaException as error:
        raise TransientError(
            f"Kafka at {settings.kafka.bootstrap} did not take it ({error}); run this again: what is in is found"
        ) from error
