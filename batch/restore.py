"""What the raw archive has lost, and somebody still has, is put into objects again, beside what is damaged.

So a damaged object can be deleted, and Kafka's retention can pass, and the raw archive still holds the log. Nothing is
replaced. An offset may be there twice afterwards, as it may be after a crash of an archiver.
"""

from collections.abc import Iterable, Iterator, Sequence

from botocore.exceptions import BotoCoreError, ClientError

from changelog.archive.objects import RawObject
from changelog.archive.position import stored_offsets
from changelog.archive.rewrite import is_of
from changelog.archive.secor import ArchivedRecord, hour_in, hour_of, read_object, start_of
from changelog.archive.store import ArchiveStore
from changelog.archive.write import Record, store
from changelog.erased import ERASED_VALUE, Erased
from changelog.reader import Entry, Reader
from changelog.topics import start_offsets
from runtime.errors import ArchiveError
from runtime.settings import Settings, entity_of

WAIT_MS = 50


def restore(
    archive: ArchiveStore,
    topic: str,
    partition: int,
    records: Iterable[ArchivedRecord],
    erased: Erased,
    start: int | None = None,
) -> None:
    """Put records of a topic-partition, in the order of their offsets, into objects by hour, as the archiver does.

    ``start``: the offset in the objects' names; None for that of the first record in each.
    """
    hours: dict[int, list[Record]] = {}
    for record in records:
        if erased.digests and is_of(record, entity_of(topic), erased):
            record = ArchivedRecord(record.offset, record.timestamp_ms, None, ERASED_VALUE)
        hours.setdefault(hour_of(record.timestamp_ms), []).append(record)
    for hour, stored in sorted(hours.items()):
        store(archive, topic, partition, hour, stored[0][0] if start is None else start, stored)


def salvage(settings: Settings, damaged: Sequence[RawObject], erased: Erased) -> None:
    """Put beside each damaged object what it held: what it still gives, and what Kafka still has of the rest.

    It held, of its hour, what lies between the offset in its name and that of the next object of its partition; also
    where that was ingested long ago, while it was whole. A second call puts nothing.
    """
    archive, ends, kept = ArchiveStore(settings.s3), stored_offsets(settings), start_offsets(settings)
    for topic in sorted({item.topic for item in damaged}):
        starts = {(item.partition, start_of(item.key)) for item in archive.list_objects(topic)}
        for item in (one for one in damaged if one.topic == topic):
            start, partition = start_of(item.key), item.partition
            later = [at for where, at in starts if where == partition and at > start]
            end = min(later, default=ends.get(topic, {}).get(partition, 0))
            held = {record.offset: record for record in _readable(archive, item.key)}
            for entry in _entries(settings, topic, partition, max(start, kept[topic][partition]), end):
                if hour_of(entry.time) == hour_in(item.key):
                    held.setdefault(entry.offset, archived(entry))
            restore(archive, topic, partition, [held[offset] for offset in sorted(held)], erased, start)


def archived(entry: Entry) -> ArchivedRecord:
    """A record as the raw archive keeps it."""
    return ArchivedRecord(entry.offset, entry.time, entry.key, entry.value or b"")


def _readable(archive: ArchiveStore, key: str) -> Iterator[ArchivedRecord]:
    """The records of an object before its damage; none if the store answers and cannot give it."""
    try:
        yield from read_object(archive.get(key), key)
    except ArchiveError:
        return
    except (BotoCoreError, ClientError):
        archive.look()  # a store that is away is another matter


def _entries(settings: Settings, topic: str, partition: int, first: int, end: int) -> Iterator[Entry]:
    if first < end:
        with Reader(settings, {topic: {partition: first}}, WAIT_MS) as reader:
            for entries in reader.read_to({topic: {partition: end}}):
                yield from entries
