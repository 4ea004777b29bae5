"""Raw objects without a guest: his records keep their place and time, and lose everything else.

The only thing that ever replaces an object of the archive, by one of the same name, with the same records at the same
offsets, and another etag; whoever reads it meanwhile is told so and reads again, and of two that replace it one does.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection

from botocore.exceptions import BotoCoreError, ClientError

from changelog.archive.secor import ArchivedRecord, pack_key, read_object, start_of
from changelog.archive.sequencefile import Writer
from changelog.archive.store import ArchiveStore
from changelog.erased import ERASED_VALUE, Erased
from changelog.positions import Vector
from changelog.validation import check
from runtime import faults
from runtime.errors import ArchiveError, TransientError
from runtime.settings import Settings, entity_of

log = logging.getLogger("rewrite")

ATTEMPTS = 5

Replaced = Callable[[str, str], None]
"""Called with the name and the new etag of each object that was replaced."""

Damaged = Callable[[str], None]
"""Called with the name of each object that is damaged, before anything takes its place: it puts beside it what it held,
or raises."""


def rewrite(
    settings: Settings,
    erased: Erased,
    archived: Vector,
    replaced: Replaced,
    damaged: Damaged,
    only: Collection[str] | None = None,
) -> dict[str, int]:
    """Replace every object, or ``only`` those of these names, that holds records of erased guests, or bad records that
    name them. Returns how many records that were, by topic. A second call finds none; killed, it is run again.

    Nobody can tell who is in what cannot be read of a damaged object. So what can be read of it takes its place, if the
    columnar archive, which ends at ``archived``, is past the damage: what was lost is there, or was accepted as lost.
    One that is still to be made up for stays as it is, and one that the store answers for and cannot give. Raises
    TransientError where somebody else kept replacing one, and what ``damaged`` raises."""
    store, found = ArchiveStore(settings.s3), dict.fromkeys(settings.topics, 0)
    for topic in settings.topics:
        items = list(store.list_objects(topic))
        starts = sorted((item.partition, start_of(item.key)) for item in items)
        for item in items:
            if only is not None and item.key not in only:
                continue
            end = archived.get(topic, {}).get(item.partition, 0)
            after = bisect_right(starts, (item.partition, start_of(item.key)))
            if after < len(starts) and starts[after][0] == item.partition and end < starts[after][1]:
                end = 0  # the archive stands before the next object: what this one lacks may be what it waits for
            found[topic] += _replaced(store, item.key, entity_of(topic), erased, end, replaced, damaged)
    return found


def _replaced(
    store: ArchiveStore, key: str, entity: str, erased: Erased, archived: int, replaced: Replaced, damaged: Damaged
) -> int:
    for attempt in range(ATTEMPTS):
        try:
            data, etag = store.read(key)
        except (BotoCoreError, ClientError) as error:
            store.look()  # a store that is away is another matter
            log.warning("%s cannot be read, and is not proven to be without anybody: %s", key, error)
            damaged(key)
            return 0
        made, number, whole = without(data, key, entity, erased, archived)
        if made == data:
            break
        if not whole:
            damaged(key)
        faults.point("erase.before-object")
        try:
            replaced(key, store.replace(key, made, etag))
            return number
        except TransientError:  # another erasure was first: what it has put is to be read
            if attempt + 1 == ATTEMPTS:
                raise
    return 0


def without(data: bytes, name: str, entity: str, erased: Erased, archived: int = 0) -> tuple[bytes, int, bool]:
    """An object's bytes without erased guests' records, how many there were, and whether it could be read whole. Of one
    that is damaged before ``archived``, where the columnar archive of its partition ends, what can be read; one that is
    damaged behind it, or empty, stays."""
    writer, number, following, whole = Writer(), 0, start_of(name), True
    try:
        for record in read_object(data, name):
            key, value, following = record.key, record.value, max(following, record.offset + 1)
            if is_of(record, entity, erased):
                key, value, number = None, ERASED_VALUE, number + 1
            writer.append(pack_key(record.offset, record.timestamp_ms, key), value)
    except ArchiveError as error:
        if not data or following >= archived:
            log.warning(
                "%s; it stays until an ingest has made up for it, and is not proven to be without anybody", error
            )
            return data, 0, False
        log.warning("%s; what can be read of it, up to offset %d, takes its place", error, following)
        whole = False
    return (data, 0, True) if whole and not number else (writer.close(), number, whole)


def is_erased_in_place(record: ArchivedRecord) -> bool:
    """Whether this stands in the place of an erased record."""
    return record.value == ERASED_VALUE and not record.key


def is_of(record: ArchivedRecord, entity: str, erased: Erased) -> bool:
    """Whether a record is of an erased guest: by its key, or, if it is bad, by naming one. As it is classified."""
    if erased.has(record.key):
        return True
    if not record.value or check(entity, record.key, record.value).reason is None:
        return False
    return erased.is_named_in(entity, record.key, record.value)
