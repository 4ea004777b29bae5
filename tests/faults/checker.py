"""An independent checker: compares journal, Kafka, raw objects, columnar archive and merged views, record by record.

Plain code on plain values, which imports nothing of the platform but names: it says which record is lost, doubled,
altered or extra (nobody wrote it), and where. A record is known by topic, partition and offset, its change by
(serviceName, identifier), its content by a digest of its bytes or, where only typed columns are kept, field by field.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from tests.faults.journal import BAD, CHANGE, TOMBSTONE, Journal, Place, digest
from tests.oracle import LogRecord, Oracle, money, when

LOST, DOUBLED, ALTERED, EXTRA = "lost", "doubled", "altered", "extra"
KAFKA, RAW, ARCHIVE, DEAD_LETTERS, SPEED = "kafka", "raw", "archive", "bad records", "speed"
DUPLICATE, EMPTY = "duplicate", "empty"

Partition = tuple[str, int]
Identity = tuple[str, str]
Content = Mapping[str, Any] | None


class Finding(NamedTuple):
    """``where`` is kafka, raw, archive, speed, bad records or the name of a view; ``record`` names what it is about."""

    where: str
    what: str
    record: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.record}{f': {self.detail}' if self.detail else ''}"


class Stored(NamedTuple):
    """A record as a raw object has it; ``time`` in microseconds since 1970."""

    place: Place
    key: bytes | None
    value: bytes
    time: int
    name: str = ""


class Archived(NamedTuple):
    """A row of the columnar archive; ``last`` is the last offset of a range without records."""

    place: Place
    last: int
    kind: str
    time: int | None
    key: bytes | None
    service: str | None
    identifier: str | None
    value: bytes | None
    current: Content = None
    original: Content = None


@dataclass
class Truth:
    """The log as far as it is known: what Kafka has, and before its beginning what raw objects have. ``kinds`` and
    ``identities`` say what each record is by plain code; ``begin``: where Kafka's log begins."""

    log: dict[Place, LogRecord]
    kinds: dict[Place, str]
    identities: dict[Place, Identity]
    begin: dict[Partition, int]

    def named(self, place: Place) -> str:
        """A record for people: place and identity."""
        topic, partition, offset = place
        identity = self.identities.get(place)
        return f"{topic}/{partition}@{offset}" + (f" ({identity[0]}, {identity[1]})" if identity else "")

    def bad(self) -> set[Place]:
        """The places of bad records."""
        return {place for place, kind in self.kinds.items() if kind == BAD}

    def fold(self) -> Oracle:
        """What plain Python makes of the log."""
        return Oracle(self.log.values(), self.bad())


def place_of(record: LogRecord) -> Place:
    return record.topic, record.partition, record.offset


def truth_of(
    journal: Journal, log: Iterable[LogRecord], begin: Mapping[Partition, int], stored: Iterable[Stored],
    foreign_bad: Iterable[Place] = (),
) -> Truth:  # fmt: skip
    """Put the truth together. Below ``begin`` it is what raw objects have, provided the journal agrees.

    A record of the journal's is bad if its writer meant so; ``foreign_bad``: bad records that others wrote.
    """
    records = {place_of(record): record for record in log}
    for one in stored:
        topic, partition, offset = one.place
        if offset < begin.get((topic, partition), 0) and one.place not in records:
            sent = journal.sent.get(journal.placed.get(one.place, -1))
            if sent is None or sent.digest == digest(one.value):
                records[one.place] = LogRecord(topic, partition, offset, one.key, one.value, one.time)
    is_bad = set(foreign_bad)
    meant_bad = {(sent.topic, sent.key, sent.digest) for sent in journal.sent.values() if sent.kind == BAD}
    kinds: dict[Place, str] = {}
    identities: dict[Place, Identity] = {}
    seen: set[tuple[str, bytes | None, Identity]] = set()
    for place in sorted(records):
        record = records[place]
        if not record.value:
            kinds[place] = TOMBSTONE
        elif (
            place in is_bad
            or (record.topic, record.key, digest(record.value)) in meant_bad
            or (identity := identity_in(record.value)) is None
        ):
            kinds[place] = BAD
        else:
            identities[place] = identity
            copy = record.topic, record.key, identity
            kinds[place] = DUPLICATE if copy in seen else CHANGE
            seen.add(copy)
    return Truth(records, kinds, identities, dict(begin))


def identity_in(value: bytes) -> Identity | None:
    """(serviceName, identifier) of a record, or None where it names none."""
    try:
        provenance = json.loads(value)["provenance"]
        return provenance["serviceName"], provenance["identifier"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def check_kafka(journal: Journal, log: Iterable[LogRecord], begin: Mapping[Partition, int]) -> list[Finding]:
    """Everything acknowledged is there unaltered, everything unknown at most as often as it was sent, and nothing else
    under the journal's keys. What lies before Kafka's beginning is the raw objects' to answer for."""
    found: list[Finding] = []
    there = {place_of(record): record for record in log}
    for place, number in sorted(journal.placed.items()):
        sent, record = journal.sent[number], there.get(place)
        if place[2] < begin.get(place[:2], 0):
            continue
        name = f"{place[0]}/{place[1]}@{place[2]} ({sent.service}, {sent.identifier})"
        if record is None:
            found.append(Finding(KAFKA, LOST, name, "it was acknowledged"))
        elif digest(record.value) != sent.digest or record.key != sent.key:
            found.append(Finding(KAFKA, ALTERED, name, f"{digest(record.value)} is not {sent.digest}"))
    for place, number in journal.displaced:
        sent = journal.sent[number]
        name = f"{place[0]}/{place[1]}@{place[2]} ({sent.service}, {sent.identifier})"
        found.append(Finding(KAFKA, LOST, name, "it was acknowledged, and then its place was given to another one"))
    unknown = journal.unknown()
    known = {(sent.topic, sent.key, sent.digest) for sent in journal.sent.values()}
    for place, record in sorted(there.items()):
        if place in journal.placed or not journal.owns(record.key):
            continue
        what = record.topic, record.key, digest(record.value)
        if unknown[what] > 0:
            unknown[what] -= 1
        else:
            kind = DOUBLED if what in known else EXTRA
            name = f"{place[0]}/{place[1]}@{place[2]} key {record.key!r}"
            found.append(Finding(KAFKA, kind, name, "nothing was sent that it could be"))
    return found


def check_raw(truth: Truth, stored: Sequence[Stored], below: Mapping[Partition, int]) -> list[Finding]:
    """Every record below ``below`` is stored once and unaltered, at any place at most that."""
    found: list[Finding] = []
    objects: dict[Place, list[str]] = defaultdict(list)
    for one in stored:
        objects[one.place].append(one.name)
        record = truth.log.get(one.place)
        if record is None:
            if one.place[2] >= truth.begin.get(one.place[:2], 0):
                found.append(Finding(RAW, EXTRA, truth.named(one.place), f"{one.name}; Kafka has no such record"))
        elif digest(one.value) != digest(record.value):
            found.append(Finding(RAW, ALTERED, truth.named(one.place), f"its value, in {one.name}"))
        elif (one.key or None) != (record.key or None) or one.time != record.time:
            found.append(Finding(RAW, ALTERED, truth.named(one.place), f"its key or its time, in {one.name}"))
    for place, names in objects.items():
        if len(names) > 1:
            found.append(Finding(RAW, DOUBLED, truth.named(place), ", ".join(sorted(names))))
    for place in sorted(truth.log.keys() - objects.keys()):
        if place[2] < below.get(place[:2], 0):
            found.append(Finding(RAW, LOST, truth.named(place), "the archiver has committed a higher offset"))
    return found


def lost_for_good(journal: Journal, truth: Truth) -> list[Finding]:
    """What was acknowledged and is neither in Kafka nor in a raw object."""
    return [
        Finding(RAW, LOST, f"{topic}/{partition}@{offset}", f"Kafka has let go of it: {journal.sent[number]}")
        for (topic, partition, offset), number in sorted(journal.placed.items())
        if offset < truth.begin.get((topic, partition), 0) and (topic, partition, offset) not in truth.log
    ]


def archived_position(rows: Iterable[Archived]) -> dict[Partition, int]:
    """One past the last offset of every topic-partition that the archive has rows of."""
    position: dict[Partition, int] = defaultdict(int)
    for row in rows:
        position[row.place[:2]] = max(position[row.place[:2]], row.last + 1)
    return dict(position)


def check_archive(truth: Truth, rows: Sequence[Archived]) -> list[Finding]:
    """Below the archived position every record is there once, as what it is, unaltered; nothing else is."""
    found: list[Finding] = []
    counted: Counter[Place] = Counter()
    for row in rows:
        topic, partition, offset = row.place
        if row.kind == EMPTY:
            held = [p for p in ((topic, partition, o) for o in range(offset, row.last + 1)) if p in truth.log]
            found += [Finding(ARCHIVE, LOST, truth.named(p), "it lies in a range called empty") for p in held]
            continue
        counted[row.place] += 1
        record = truth.log.get(row.place)
        if record is None:
            if offset >= truth.begin.get((topic, partition), 0):
                found.append(Finding(ARCHIVE, EXTRA, truth.named(row.place), f"a {row.kind}"))
        elif differs := _differs(truth, row, record):
            found.append(Finding(ARCHIVE, ALTERED, truth.named(row.place), differs))
    found += [Finding(ARCHIVE, DOUBLED, truth.named(place), f"{n} rows") for place, n in counted.items() if n > 1]
    position = archived_position(rows)
    empty = {
        (*row.place[:2], offset) for row in rows if row.kind == EMPTY for offset in range(row.place[2], row.last + 1)
    }
    for place in sorted(truth.log.keys() - counted.keys() - empty):
        if place[2] < position.get(place[:2], 0):
            found.append(Finding(ARCHIVE, LOST, truth.named(place), f"a {truth.kinds[place]}"))
    return found


def _differs(truth: Truth, row: Archived, record: LogRecord) -> str:
    """What of a row is not what the record says; empty if all is."""
    kind = truth.kinds[row.place]
    if row.kind != kind:
        return f"it is called {row.kind} and is {kind}"
    if (row.key or None) != (record.key or None) or row.time != record.time:
        return "its key or its time"
    if kind != CHANGE:
        return "" if digest(row.value) == digest(record.value) else "its value"
    if (row.service, row.identifier) != truth.identities[row.place]:
        return f"its identity is {row.service}, {row.identifier}"
    envelope = json.loads(record.value or b"", parse_float=Decimal)
    for side in ("current", "original"):
        if not same(getattr(row, side), envelope.get(side)):
            return f"its {side}"
    return ""


def same(column: Any, said: Any) -> bool:
    """Whether a typed column holds what JSON said: names in snake_case, amounts with four digits, times as times.
    Fields that have no column are nobody's business."""
    if column is None or said is None:
        return column is None and said is None
    if isinstance(column, Mapping):
        return isinstance(said, dict) and all(same(value, said.get(camel(name))) for name, value in column.items())
    if isinstance(column, list | tuple):
        return isinstance(said, list) and len(column) == len(said) and all(map(same, column, said))
    if isinstance(column, Decimal):
        return isinstance(said, Decimal | int) and money(said) == column
    if isinstance(column, datetime):
        return isinstance(said, str) and when(said) == column
    return bool(column == said)


def camel(name: str) -> str:
    """``created_at`` → ``createdAt``."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def check_dead_letters(truth: Truth, rows: Iterable[tuple[Place, bytes | None]]) -> list[Finding]:
    """Every bad record is listed once, whole. ``rows``: place and value."""
    found: list[Finding] = []
    listed: Counter[Place] = Counter()
    for place, value in rows:
        listed[place] += 1
        record = truth.log.get(place)
        if truth.kinds.get(place, BAD if place[2] < truth.begin.get(place[:2], 0) else "") != BAD:
            found.append(Finding(DEAD_LETTERS, EXTRA, truth.named(place), "it is not bad"))
        elif record and digest(record.value) != digest(value):
            found.append(Finding(DEAD_LETTERS, ALTERED, truth.named(place)))
    found += [Finding(DEAD_LETTERS, DOUBLED, truth.named(place)) for place, n in listed.items() if n > 1]
    found += [Finding(DEAD_LETTERS, LOST, truth.named(place)) for place in sorted(truth.bad() - listed.keys())]
    return found


class Epoch(NamedTuple):
    """A row of the speed layer's journal: what it says of an epoch in a topic-partition."""

    generation: int
    epoch: int
    partition: Partition
    start: int
    end: int
    kinds: Mapping[str, int]


def check_speed(truth: Truth, epochs: Iterable[Epoch]) -> list[Finding]:
    """The epochs of a generation follow each other without gap or overlap, and count what is there: good and bad are
    all. Of epochs before Kafka's beginning, and of copies beyond the horizon, it says nothing."""
    found: list[Finding] = []
    kinds: dict[Partition, dict[int, str]] = defaultdict(dict)
    for (topic, partition, offset), kind in truth.kinds.items():
        kinds[topic, partition][offset] = kind
    last: dict[tuple[int, Partition], int] = {}
    for one in sorted(epochs, key=lambda e: (e.generation, e.partition, e.epoch)):
        name = f"{one.partition[0]}/{one.partition[1]}, generation {one.generation}, epoch {one.epoch}"
        before = last.get((one.generation, one.partition))
        if before is not None and one.start != before:
            what = LOST if one.start > before else DOUBLED
            found.append(Finding(SPEED, what, name, f"it begins at {one.start}; the one before ended at {before}"))
        last[one.generation, one.partition] = one.end
        if one.start < truth.begin.get(one.partition, 0):
            continue
        here = kinds[one.partition]
        counted = Counter(here[offset] for offset in range(one.start, one.end) if offset in here)
        said = sum(one.kinds.values())
        if said != counted.total():
            what = LOST if said < counted.total() else DOUBLED
            found.append(Finding(SPEED, what, name, f"it counts {said} records of {counted.total()}"))
        elif any(one.kinds[kind] != counted[kind] for kind in (BAD, TOMBSTONE)):
            found.append(Finding(SPEED, ALTERED, name, f"it counts {dict(one.kinds)}, there are {dict(counted)}"))
    return found


def check_view(
    name: str, served: Sequence[tuple[Any, ...]], truth: set[tuple[Any, ...]], keys: int,
    record_of: Mapping[tuple[Any, ...], str] | None = None,
) -> list[Finding]:  # fmt: skip
    """The rows of a merged view, known by their first ``keys`` columns, are there once and say what they must.

    ``record_of``: for views with one row for an entity, the record that its row follows from.
    """
    record_of = record_of or {}

    def about(key: tuple[Any, ...]) -> str:
        return f"{'|'.join(map(str, key))}{f' from {record_of[key]}' if key in record_of else ''}"

    must = {row[:keys]: row for row in truth}
    rows: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for row in served:
        rows[row[:keys]].append(row)
    found = []
    for key, there in rows.items():
        if len(there) > 1:
            found.append(Finding(name, DOUBLED, about(key), f"{len(there)} rows"))
        if key not in must:
            found.append(Finding(name, EXTRA, about(key), str(there[0][keys:])))
        elif there[0] != must[key] and not _near(name, there[0], must[key]):
            found.append(Finding(name, ALTERED, about(key), f"{there[0][keys:]} instead of {must[key][keys:]}"))
    found += [Finding(name, LOST, about(key)) for key in sorted(must.keys() - rows.keys(), key=str)]
    return found


KEYS = {
    "order_latest": 2, "guest_latest": 1, "session_latest": 2, "revenue": 3, "guest_spend": 2, "product_sales": 3,
    "traffic": 3, "sessions": 2, "pages": 2, "conversion": 4, "cancellations": 3, "cart_abandoned": 3,
    "large_first_order": 3,
}  # fmt: skip
"""For each view that people read, how many of the columns that the tests read make up the key."""


APPROXIMATE = {"traffic": 4}
"""For each view with an approximate distinct, its column among those that the tests read."""


def _near(name: str, row: tuple[Any, ...], must: tuple[Any, ...]) -> bool:
    """Whether rows differ in an approximate column alone, by no more than a sketch of 4,096 registers may."""
    at = APPROXIMATE.get(name)
    if at is None or row[:at] + row[at + 1 :] != must[:at] + must[at + 1 :]:
        return False
    return bool(abs(row[at] - must[at]) <= max(3, 0.06 * must[at]))


def newest_records(truth: Truth, oracle: Oracle) -> dict[str, dict[tuple[Any, ...], str]]:
    """For each view with a row for an entity: key → the record that the row follows from."""
    found: dict[str, dict[tuple[Any, ...], str]] = defaultdict(dict)
    for entity in ("guest", "session", "order"):
        for change in oracle.changes[entity]:
            ref = (change.current or change.original or {})["ref"]
            key = (ref,) if entity == "guest" else (change.guest, ref)
            found[f"{entity}_latest"][key] = truth.named(place_of(change.at))
    for pattern in ("cancellations", "cart_abandoned", "large_first_order"):
        topic = "changelog.event" if pattern == "cart_abandoned" else "changelog.order"
        for guest, partition, offset in getattr(oracle, pattern)():
            found[pattern][guest, partition, offset] = truth.named((topic, partition, offset))
    return found
