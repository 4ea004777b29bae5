"""The whole log as it is now, for questions about single records: the columnar archive, and Kafka from its end on."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import orjson
from trino.dbapi import Connection as TrinoConnection

from changelog.erasures import recorded
from changelog.positions import Vector
from changelog.reader import Entry, Reader
from changelog.records import Identity, Place
from changelog.topics import acknowledged_offsets, start_offsets
from changelog.validation import check
from runtime import ops, trino
from runtime.settings import ENTITIES, Settings, entity_of, topic_of

AT_ONCE = 500
"""Names in one question to Trino."""

_Item = TypeVar("_Item")

EntityKey = tuple[str, bytes, str]
"""topic, key (the guest's ref), ref."""


class Change(NamedTuple):
    """A change that is in the log, and its entity's ref."""

    place: Place
    append_time: datetime
    identity: Identity
    ref: str

    @property
    def entity(self) -> EntityKey:
        return self.identity.topic, self.identity.key, self.ref


@dataclass
class Tail:
    """What the archive does not have yet: offsets from ``start`` to ``end``, which is the end of what was acknowledged
    when it was asked for. ``missing``: stretches that neither the archive nor Kafka has."""

    start: Vector
    end: Vector
    missing: list[str] = field(default_factory=list)

    def entries(self, settings: Settings) -> Iterator[Entry]:
        """Its records, but for those of erased guests. A transaction that is open there is waited for.

        Raises TransientError if Kafka falls silent, RetentionError if it lets go of what was to be read next.
        """
        with ops.connect(settings) as connection:
            erased = recorded(settings, connection)
        with Reader(settings, self.start, wait_ms=100) as reader:
            for entries in reader.read_to(self.end):
                yield from (
                    entry
                    for entry in entries
                    if entry.offset < self.end[entry.topic][entry.partition] and not erased.has(entry.key)
                )


def archived_entities(lake: TrinoConnection) -> dict[str, str]:
    """Entities whose columnar archive is there, each with the type of its ``current`` as Trino writes it."""
    _, rows = trino.execute(
        lake,
        "SELECT table_name, data_type FROM lake.information_schema.columns "
        "WHERE table_schema = 'archive' AND column_name = 'current'",
    )
    there = {row[0]: row[1] for row in rows}
    return {entity: there[entity] for entity in ENTITIES if entity in there}


def tail(lake: TrinoConnection, settings: Settings, entities: Collection[str] = ENTITIES) -> Tail:
    """The tail of the log of ``entities`` as it is now. Below its start the archive has everything."""
    topics = [topic_of(entity) for entity in entities]
    archived = _archived_position(lake, settings, entities)
    kept, end = start_offsets(settings, topics), acknowledged_offsets(settings, topics)
    found = Tail({}, end)
    for topic, partitions in archived.items():
        for partition, offset in partitions.items():
            first = kept[topic][partition]
            found.start.setdefault(topic, {})[partition] = max(offset, first)
            if first > offset:
                found.missing.append(f"{topic}/{partition}/{offset}-{first - 1}")
    return found


def _archived_position(lake: TrinoConnection, settings: Settings, entities: Collection[str]) -> Vector:
    """Where the columnar archive of each of ``entities`` ends, from the statistics of its files."""
    vector: Vector = {topic_of(entity): dict.fromkeys(range(settings.kafka.partitions), 0) for entity in entities}
    queries = [
        f"SELECT '{topic_of(entity)}', partition.kafka_partition, data.last_offset.max + 1 "
        f'FROM lake.archive."{entity}$partitions"'
        for entity in archived_entities(lake).keys() & set(entities)
    ]
    for topic, partition, end in trino.execute(lake, " UNION ALL ".join(queries))[1] if queries else ():
        vector[topic][partition] = end
    return vector


def find_changes(settings: Settings, identities: Collection[Identity], entities: Collection[EntityKey]) -> list[Change]:
    """Every change of the log that has one of ``identities`` or is of one of ``entities``, in the order of each
    partition. A copy within the part that is not archived yet is there beside the change that it is a copy of."""
    topics = {identity.topic for identity in identities} | {topic for topic, _, _ in entities}
    if not topics:
        return []
    rest = tail(trino.connect(settings), settings, [entity_of(topic) for topic in sorted(topics)])
    found = {change.place: change for change in archived_changes(settings, identities, entities)}
    keys = {identity.key for identity in identities} | {key for _, key, _ in entities}
    wanted_identities, wanted_entities = set(identities), set(entities)
    for entry in rest.entries(settings):
        change = _change(entry) if entry.key in keys else None
        if change and (change.identity in wanted_identities or change.entity in wanted_entities):
            found[change.place] = change
    return [change for _, change in sorted(found.items())]


def archived_changes(
    settings: Settings, identities: Collection[Identity], entities: Collection[EntityKey] = ()
) -> list[Change]:
    """As :func:`find_changes`, of what is archived; none of it is a copy."""
    lake, found = trino.connect(settings), {}
    wanted_identities, wanted_entities = set(identities), set(entities)
    for name in archived_entities(lake) if identities or entities else ():
        topic = topic_of(name)
        for column, wanted in (
            ("identifier", {identity.identifier for identity in identities if identity.topic == topic}),
            ('coalesce("current".ref, original.ref)', {ref for of, _, ref in entities if of == topic}),
        ):
            for some in chunks(sorted(wanted), AT_ONCE):
                for change in _archived(lake, name, column, some):
                    if change.identity in wanted_identities or change.entity in wanted_entities:
                        found[change.place] = change
    return [change for _, change in sorted(found.items())]


def _archived(lake: TrinoConnection, entity: str, column: str, values: Iterable[str]) -> list[Change]:
    names, topic = ", ".join(map(trino.literal, values)), topic_of(entity)
    _, rows = trino.execute(
        lake,
        "SELECT kafka_partition, kafka_offset, append_time, key, service_name, identifier, "
        f'coalesce("current".ref, original.ref) FROM lake.archive."{entity}" '
        f"WHERE kind = 'change' AND {column} IN ({names})",
    )
    return [
        Change(Place(topic, row[0], row[1]), row[2], Identity(topic, bytes(row[3]), row[4], row[5]), row[6])
        for row in rows
    ]


def _change(entry: Entry) -> Change | None:
    """A record of the tail as a change; None if it is none."""
    reason, service, identifier = check(entity_of(entry.topic), entry.key, entry.value or b"")
    if reason is not None or service is None or identifier is None or entry.value is None:
        return None
    envelope = orjson.loads(entry.value)
    ref = (envelope.get("current") or envelope["original"])["ref"]
    time = datetime.fromtimestamp(entry.time / 1000, UTC)
    identity = Identity(entry.topic, entry.key or b"", service, identifier)
    return Change(Place(entry.topic, entry.partition, entry.offset), time, identity, ref)


def chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """``items`` in parts of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
