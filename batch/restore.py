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


def salvage(settings: Settings, lost: Collection[str], erased: Erased) -> dict[str, int | None]:
    """Put beside each object that is damaged or gone what it held: what it still gives, and what Kafka still has of the
    rest. Returns the name of each for which that was done, with the number of records; None where it had been before.
    Where it could not be done now the log says why.

    An object held, of its hour, what lies between the offset in its name and that of the next one of its partition.
    A second call puts nothing.
    """
    saved: dict[str, int | None] = {}
    archive, ends = ArchiveStore(settings.s3), stored_offsets(settings)
    for topic, keys in groupby(sorted(lost), lambda key: parsed(key).topic):
        others = {item.key: parsed(item.key) for item in archive.list_objects(topic)}
        starts = sorted((other.partition, other.start) for other in others.values())
        beside = {_place(o) for key, o in others.items() if o.generation > SECORS_GENERATION and key not in lost}
        for key in keys:
            name = parsed(key)
            if _place(name) in beside:
                saved[key] = None
                continue
            after = bisect_right(starts, (name.partition, name.start))
            end = ends.get(topic, {}).get(name.partition, 0)
            if after < len(starts) and starts[after][0] == name.partition:
                end = starts[after][1]
            try:
                held = {record.offset: record for record in _readable(archive, key)}
                for record in _from_kafka(settings, name, end):
                    held.setdefault(record.offset, record)
                stored = _without((held[offset] for offset in sorted(held)), topic, erased)
                store(archive, topic, name.partition, name.hour, name.start, stored)
                saved[key] = len(held)
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
        if key not in salvage(settings, [key], served(settings, ops)):
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
