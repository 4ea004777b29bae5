"""What the raw archive has lost, and somebody still has, is put into objects again, beside what is damaged.

So a damaged object can be deleted, and Kafka's retention can pass, and the raw archive still holds the log. Nothing is
replaced. An offset may be there twice afterwards, as it may be after a crash of an archiver.
"""

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import KafkaException

from changelog.archive.position import stored_offsets
from changelog.archive.rewrite import Damaged, Replaced, is_of
from changelog.archive.secor import SECORS_GENERATION, ArchivedRecord, ObjectName, hour_of, parsed, read_object
from changelog.archive.store import ArchiveStore
from changelog.archive.write import store
from changelog.erased import ERASED_VALUE, Erased
from changelog.erasures import served
from changelog.reader import Entry, Reader
from changelog.topics import start_offsets
from runtime.errors import AnabranchError, ArchiveError, TransientError
from runtime.ops import Connection
from runtime.settings import Settings, entity_of

log = logging.getLogger("restore")

WAIT_MS = 50


def restore(
    archive: ArchiveStore, topic: str, partition: int, records: Iterable[ArchivedRecord], erased: Erased
) -> None:
    """Put records of a topic-partition, in the order of their offsets, into objects, another one wherever the hour
    changes: so an object holds what lies between the offset in its name and that of the next."""
    for hour, stretch in groupby(records, lambda record: hour_of(record.timestamp_ms)):
        stored = _without(stretch, topic, erased)
        store(archive, topic, partition, hour, stored[0].offset, stored)


def salvage(settings: Settings, ops: Connection, lost: Collection[str]) -> dict[str, int | None]:
    """Put beside each object that is damaged or gone what it held and no whole one holds: what it still gives, and what
    Kafka still has of the rest. Returns the name of each for which that was done, with the number of records that are
    there now; None where it had been done before. Where it could not be done now the log says why.

    An object held, of its hour, what lies between the offset in its name and that of the next one of its partition, or
    the last one that ingest read in it. A second call puts nothing.
    """
    saved: dict[str, int | None] = {}
    archive, ends, erased = ArchiveStore(settings.s3), stored_offsets(settings), served(settings, ops)
    rows = ops.execute("SELECT object, last_offset FROM archive_objects").fetchall()
    last: dict[str, int] = {row["object"]: row["last_offset"] for row in rows}
    for topic, keys in groupby(sorted(lost), lambda key: parsed(key).topic):
        names = {key: parsed(key) for key in keys}
        others = {item.key: parsed(item.key) for item in archive.list_objects(topic) if item.key not in names}
        starts = sorted({(name.partition, name.start) for name in (*names.values(), *others.values())})
        beside = {_place(name) for name in others.values() if name.generation > SECORS_GENERATION}
        for key, name in names.items():
            if _place(name) in beside:
                saved[key] = None
                continue
            after = bisect_right(starts, (name.partition, name.start))
            end = ends.get(topic, {}).get(name.partition, 0)
            if after < len(starts) and starts[after][0] == name.partition:
                end = starts[after][1]
            end = max(end, last.get(key, -1) + 1)
            try:
                held = {record.offset: record for record in _readable(archive, key)}
                for record in _from_kafka(settings, name, end):
                    held.setdefault(record.offset, record)
                there = {
                    offset
                    for other, its in others.items()
                    if (its.partition, its.hour) == (name.partition, name.hour) and its.start < end
                    if last.get(other, end) >= name.start
                    for offset in _offsets(archive, other)
                    if name.start <= offset < end
                }
                left = _without((held[offset] for offset in sorted(held.keys() - there)), topic, erased)
                if put := store(archive, topic, name.partition, name.hour, name.start, left):
                    others[put.name] = parsed(put.name)
                saved[key] = len(held.keys() | there)
            except (AnabranchError, BotoCoreError, ClientError, KafkaException) as error:
                log.warning("%s: what it held is not stored anew: %s", key, error)
    return saved


def keeping(settings: Settings, ops: Connection) -> tuple[Replaced, Damaged]:
    """What a rewrite of objects has to call: ingest knows those that are replaced, and looks at those that cannot be
    read; nothing that somebody still has is lost with a damaged one."""

    def replaced(key: str, etag: str) -> None:
        ops.execute("UPDATE archive_objects SET etag = %s WHERE object = %s", (etag, key))

    def damaged(key: str) -> None:
        replaced(key, "")
        if key not in salvage(settings, ops, [key]):
            raise TransientError(f"{key} is damaged, and what it held could not be put beside it; run this again")

    return replaced, damaged


def archived(entry: Entry) -> ArchivedRecord:
    """A record as the raw archive keeps it."""
    return ArchivedRecord(entry.offset, entry.time, entry.key, entry.value or b"")


def _place(name: ObjectName) -> tuple[int, int, int]:
    return name.partition, name.hour, name.start


def _without(records: Iterable[ArchivedRecord], topic: str, erased: Erased) -> list[ArchivedRecord]:
    """``records`` without the content of those of erased guests."""
    return [
        record._replace(key=None, value=ERASED_VALUE)
        if erased and is_of(record, entity_of(topic), erased)
        else record
        for record in records
    ]  # fmt: skip


def _readable(archive: ArchiveStore, key: str) -> Iterator[ArchivedRecord]:
    """The records of an object before its damage; none if the store answers and cannot give it."""
    try:
        yield from read_object(archive.get(key), key)
    except ArchiveError:
        return
    except (BotoCoreError, ClientError):
        archive.look()  # a store that is away is another matter


def _offsets(archive: ArchiveStore, key: str) -> list[int]:
    """The offsets in an object; none if it is damaged, for what it holds has to be beside it."""
    try:
        return [record.offset for record in read_object(archive.get(key), key)]
    except ArchiveError:
        return []
    except (BotoCoreError, ClientError):
        archive.look()  # a store that is away is another matter
        return []


def _from_kafka(settings: Settings, name: ObjectName, end: int) -> Iterator[ArchivedRecord]:
    """The records of an object's hour from the offset in its name to before ``end``, as far as Kafka has them."""
    topic, partition = name.topic, name.partition
    first = max(name.start, start_offsets(settings, [topic])[topic][partition])
    if first < end:
        with Reader(settings, {topic: {partition: first}}, WAIT_MS) as reader:
            for entries in reader.read_to({topic: {partition: end}}):
                for entry in entries:
                    if entry.offset < end and hour_of(entry.time) == name.hour:
                        yield archived(entry)
