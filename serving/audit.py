"""Who wrote what: every record of the log that a service, an identifier, an order or a guest has to do with.

What is archived is answered by SQL (``ops.audit``), what is newer by reading Kafka from the archived position to the
end of what is acknowledged: the speed layer folds records and keeps none.
"""

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import ArrayType, DataType, DecimalType, StructType, TimestampType
from trino.dbapi import Connection as TrinoConnection

from changelog import exact
from changelog.classify import BAD, CHANGE, DUPLICATE, TOMBSTONE
from changelog.envelope import timestamp
from changelog.positions import Vector
from changelog.reader import Entry
from changelog.records import Identity, Place
from changelog.typed import entity_type, snake
from changelog.validation import check
from runtime import ops, trino
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, Settings, entity_of
from serving import sql
from serving.letter_notes import Notes
from serving.publication import is_hiding
from serving.whole_log import Tail, archived_changes, archived_entities, tail


@dataclass(frozen=True)
class Question:
    """Which records are asked for: those that fit all that is given. Raises TerminalError if nothing is."""

    service: str | None = None
    identifier: str | None = None
    order: str | None = None
    guest: str | None = None

    def __post_init__(self) -> None:
        if not any((self.service, self.identifier, self.order, self.guest)):
            raise TerminalError("say what is asked for: --service, --identifier, --order or --guest")

    @property
    def entities(self) -> tuple[str, ...]:
        """Entities whose records can fit."""
        return ENTITIES if self.order is None else ("order",)

    @property
    def condition(self) -> str:
        """As SQL over ``ops.audit``."""
        wanted = {
            "service_name": self.service,
            "identifier": self.identifier,
            "ref": self.order,
            "guest_ref": self.guest,
        }
        return " AND ".join(f"{name} = {trino.literal(value)}" for name, value in wanted.items() if value is not None)

    def may_fit(self, entry: Entry) -> bool:
        """False only for a record that does not fit, told by its bytes: most of a log need not be parsed."""
        key, value = entry.key or b"", entry.value or b""
        if b"\\" in value or "\ufffd" in (self.guest or ""):  # something is written otherwise than it reads
            return True
        said = [text.encode() for text in (self.service, self.identifier, self.order) if text is not None]
        guest = (self.guest or "").encode()
        return all(text in value for text in said) and (guest in key or guest in value)

    def fits(self, record: "Record") -> bool:
        """As :attr:`condition`."""
        return (
            (self.service is None or record.service == self.service)
            and (self.identifier is None or record.identifier == self.identifier)
            and (self.order is None or (record.entity == "order" and record.ref == self.order))
            and (self.guest is None or record.guest == self.guest)
        )


@dataclass
class Record:
    """One record of the log. ``current`` and ``original``: fields in snake_case, money as decimals of four digits,
    those that are absent or null left out. ``replayed_to``, ``dead_letter``: places as topic/partition/offset."""

    place: Place
    append_time: datetime
    kind: str
    service: str | None
    identifier: str | None
    entity: str
    guest: str | None
    ref: str | None
    change: str | None
    reason: str | None
    current: Any
    original: Any
    archived: bool
    replayed_to: str | None = None
    dead_letter: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Its fields under the names of the command's JSON."""
        return {
            **self.place._asdict(), "append_time": timestamp(self.append_time), "kind": self.kind,
            "service": self.service, "identifier": self.identifier, "entity": self.entity, "guest": self.guest,
            "ref": self.ref, "change": self.change, "reason": self.reason, "current": self.current,
            "original": self.original, "archived": self.archived, "replayed_to": self.replayed_to,
            "dead_letter": self.dead_letter,
        }  # fmt: skip


@dataclass
class Answer:
    """``records``: the newest of ``total`` that fit, in the order of the log. The archive answered below ``archived``,
    Kafka from there to ``end``. ``missing``: stretches that neither had."""

    total: int
    records: list[Record]
    archived: Vector
    end: Vector
    missing: list[str] = field(default_factory=list)


def audit(settings: Settings, question: Question, limit: int | None = None) -> Answer:
    """Everything that fits, up to the end of what is acknowledged now; of more than ``limit`` the newest.

    Raises TransientError if Trino or Kafka does not answer.
    """
    lake = trino.connect(settings)
    rest = tail(lake, settings, question.entities)
    with ops.connect(settings) as connection:
        hide = is_hiding(connection)
    total, records = _archived(lake, question, rest, limit, hide)
    entries = (entry for entry in rest.entries(settings) if question.may_fit(entry))
    newer = [record for entry in entries if question.fits(record := read(entry))]
    shown = in_order([*records, *newer])
    if limit is not None:
        shown = shown[max(0, len(shown) - limit) :]
    _mark_copies(settings, newer, {id(record) for record in shown})
    with ops.connect(settings) as connection:
        notes = Notes(connection)
    became = {note.to: note.place for note in notes.done()}
    for record in shown:
        note, letter = notes.get(record.place), became.get(record.place)
        record.replayed_to = str(note.to) if note and note.to else None
        record.dead_letter = str(letter) if letter else None
    return Answer(total + len(newer), shown, rest.start, rest.end, rest.missing)


def _archived(
    lake: TrinoConnection, question: Question, rest: Tail, limit: int | None, hide: bool
) -> tuple[int, list[Record]]:
    """How many records below the tail fit, and the newest of them."""
    types = {entity: type_ for entity, type_ in archived_entities(lake).items() if entity in question.entities}
    if not types:
        return 0, []
    below = " OR ".join(
        f"(topic = '{topic}' AND kafka_partition = {partition} AND kafka_offset < {offset})"
        for topic, partitions in rest.start.items()
        for partition, offset in partitions.items()
    )
    first = f" LIMIT {limit}" if limit is not None else ""
    _, rows = trino.execute(
        lake,
        "SELECT count(*) OVER (), topic, kafka_partition, kafka_offset, append_time, kind, service_name, identifier, "
        f'entity, guest_ref, ref, change, reason, "current", original, value FROM ({sql.audit(types, hide)}) '
        f"WHERE {question.condition} AND ({below}) ORDER BY append_time DESC, kafka_offset DESC{first}",
    )
    return (rows[0][0] if rows else 0), [_from_row(row) for row in rows]


def _from_row(row: Sequence[Any]) -> Record:
    _, topic, partition, offset, time, kind, service, identifier, entity, guest, ref, change, reason = row[:13]
    current, original, value = row[13:]
    if value is not None:
        said = _said(bytes(value))
        current, original = said.get("current"), said.get("original")
    else:
        current, original = (exact.parse(text.encode()) if text is not None else None for text in (current, original))
    now, before = (plain(entity_type(entity), side) for side in (current, original))
    place = Place(topic, partition, offset)
    return Record(place, time, kind, service, identifier, entity, guest, ref, change, reason, now, before, True)


def read(entry: Entry) -> Record:
    """A record of Kafka as the archive would have it, but for copies, which look like changes here."""
    entity, place = entity_of(entry.topic), Place(entry.topic, entry.partition, entry.offset)
    time = datetime.fromtimestamp(entry.time / 1000, UTC)
    guest = entry.key.decode(errors="replace") if entry.key else None
    if not entry.value:
        return Record(place, time, TOMBSTONE, None, None, entity, guest, None, None, None, None, None, False)
    reason, service, identifier = check(entity, entry.key, entry.value)
    said = _said(entry.value)
    current, original = said.get("current"), said.get("original")
    if reason is not None:
        service, identifier = (_text(said.get("provenance"), name) for name in ("serviceName", "identifier"))
    name = "ref" if entity == "guest" else "guestRef"
    guest = guest or _text(current, name) or _text(original, name)
    ref = _text(current, "ref") or _text(original, "ref")
    there = (current is not None, original is not None)
    change = {(True, False): "create", (True, True): "update", (False, True): "delete"}.get(there)
    now, before = (plain(entity_type(entity), side) for side in (current, original))
    kind = CHANGE if reason is None else BAD
    return Record(place, time, kind, service, identifier, entity, guest, ref, change, reason, now, before, False)


def _said(value: bytes) -> dict[str, Any]:
    """What bytes say as JSON; nothing where they are no object."""
    try:
        said = exact.parse(value)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _text(said: Any, name: str) -> str | None:
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, str) else None


def plain(type_: DataType, value: Any) -> Any:
    """A value as it is read, from either side: known fields in snake_case, those without a value left out, money with
    four digits, times in ISO 8601. What does not fit the type stays as it is."""
    if isinstance(type_, StructType) and isinstance(value, dict):
        fields = {
            snake(field.name): plain(field.dataType, value.get(field.name, value.get(snake(field.name))))
            for field in type_.fields
        }
        return {name: one for name, one in fields.items() if one is not None}
    if isinstance(type_, ArrayType) and isinstance(value, list):
        return [plain(type_.elementType, one) for one in value]
    if isinstance(type_, DecimalType) and isinstance(value, int | Decimal) and not isinstance(value, bool):
        with contextlib.suppress(InvalidOperation):
            return Decimal(value).quantize(Decimal(1).scaleb(-type_.scale), ROUND_HALF_UP)
    if isinstance(type_, TimestampType) and isinstance(value, str):
        with contextlib.suppress(ValueError):
            time = datetime.fromisoformat(value)
            return timestamp(time if time.tzinfo else time.replace(tzinfo=UTC))
    return value


def in_order(records: Iterable[Record]) -> list[Record]:
    """By the broker's time, and in each partition by offset, also where its clock has gone back."""
    times: dict[tuple[str, int], datetime] = {}
    ordered = []
    for record in sorted(records, key=lambda record: record.place):
        partition = record.place[:2]
        times[partition] = max(record.append_time, times.get(partition, record.append_time))
        ordered.append((times[partition], record))
    return [record for _, record in sorted(ordered, key=lambda pair: (pair[0], pair[1].place))]


def _mark_copies(settings: Settings, newer: list[Record], shown: Collection[int]) -> None:
    """Make duplicates of the records of the tail that are copies: of one another, or of what is archived."""
    firsts: set[Identity] = set()
    asked: list[Record] = []
    for record in sorted(newer, key=lambda record: record.place):
        if record.kind == CHANGE:
            if _identity(record) in firsts:
                record.kind = DUPLICATE
            elif id(record) in shown:
                asked.append(record)
            firsts.add(_identity(record))
    archived = {change.identity for change in archived_changes(settings, {_identity(record) for record in asked})}
    for record in asked:
        if _identity(record) in archived:
            record.kind = DUPLICATE


def _identity(record: Record) -> Identity:
    return Identity(record.place.topic, (record.guest or "").encode(), record.service or "", record.identifier or "")
