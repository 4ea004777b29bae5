"""Raw objects without a guest: his records keep their place and time, and lose everything else.

The only thing that ever replaces an object of the archive. It has the same name, the same records at the same offsets,
and another etag; whoever reads it while it is replaced is told so and reads again, and of two that replace it one does.
"""

import logging
from collections.abc import Callable

from changelog.archive.secor import ArchivedRecord, pack_key, read_object
from changelog.archive.sequencefile import Writer
from changelog.archive.store import ArchiveStore
from changelog.erased import ERASED_VALUE, Erased
from changelog.validation import check
from runtime import faults
from runtime.errors import ArchiveError, TransientError
from runtime.settings import Settings, entity_of

log = logging.getLogger("rewrite")

ATTEMPTS = 5

Replaced = Callable[[str, str], None]
"""Called with the name and the new etag of each object that was replaced."""


def rewrite(settings: Settings, erased: Erased, replaced: Replaced) -> dict[str, int]:
    """Replace every object that holds records of erased guests, or bad records that name them. Returns how many records
    that were, by topic. A second call finds none; killed, it is run again. An object that cannot be read stays as it
    is. Raises TransientError where somebody else kept replacing one."""
    store, found = ArchiveStore(settings.s3), dict.fromkeys(settings.topics, 0)
    for topic in settings.topics:
        for item in store.list_objects(topic):
            try:
                found[topic] += _replaced(store, item.key, entity_of(topic), erased, replaced)
            except ArchiveError as error:
                log.warning("%s", error)
    return found


def _replaced(store: ArchiveStore, key: str, entity: str, erased: Erased, replaced: Replaced) -> int:
    for attempt in range(ATTEMPTS):
        data, etag = store.read(key)
        made, number = without(data, key, entity, erased)
        if made == data:
            break
        faults.point("erase.before-object")
        try:
            replaced(key, store.replace(key, made, etag))
            return number
        except TransientError:  # another erasure was first: what it has put is to be read
            if attempt + 1 == ATTEMPTS:
                raise
    return 0


def without(data: bytes, name: str, entity: str, erased: Erased) -> tuple[bytes, int]:
    """An object's bytes without erased guests' records, and how many there were. Raises ArchiveError if it is
    damaged."""
    records, writer, number = list(read_object(data, name)), Writer(), 0
    for record in records:
        key, value = record.key, record.value
        if is_of(record, entity, erased):
            key, value, number = None, ERASED_VALUE, number + 1
        writer.append(pack_key(record.offset, record.timestamp_ms, key), value)
    return (writer.close(), number) if number else (data, 0)


def is_of(record: ArchivedRecord, entity: str, erased: Erased) -> bool:
    """Whether a record is of an erased guest: by its key, or, if it is bad, by naming one. As it is classified."""
    if erased.has(record.key):
        return True
    if not record.value or check(entity, record.key, record.value).reason is None:
        return False
    return erased.is_named_in(entity, record.key) or erased.is_named_in(entity, record.value)
