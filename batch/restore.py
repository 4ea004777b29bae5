"""What the raw archive has lost, and somebody still has, is put into objects again, beside what is damaged.

So a damaged object can be moved away, and Kafka's retention can pass, and the raw archive still holds the log. Nothing
is replaced. Called again for the same, nothing is put; of two at once both may, and then an offset is there twice, as
it may be after a crash of an archiver.
"""

from collections.abc import Iterable

from botocore.exceptions import BotoCoreError, ClientError

from changelog.archive.rewrite import is_of
from changelog.archive.secor import ArchivedRecord, hour_of, read_object, start_of
from changelog.archive.store import ArchiveStore
from changelog.archive.write import Record, store
from changelog.erased import ERASED_VALUE, Erased
from runtime.errors import ArchiveError
from runtime.settings import entity_of


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
        if is_of(record, entity_of(topic), erased):
            record = ArchivedRecord(record.offset, record.timestamp_ms, None, ERASED_VALUE)
        hours.setdefault(hour_of(record.timestamp_ms), []).append(record)
    for hour, stored in sorted(hours.items()):
        store(archive, topic, partition, hour, stored[0][0] if start is None else start, stored)


def salvage(archive: ArchiveStore, topic: str, partition: int, key: str, erased: Erased) -> None:
    """Put what a damaged object still gives beside it: nothing of one that gives nothing."""
    records: list[ArchivedRecord] = []
    try:
        records.extend(read_object(archive.get(key), key))
    except ArchiveError:
        pass  # the damage: what came before it is in ``records``
    except (BotoCoreError, ClientError):
        archive.look()  # a store that is away is another matter
    restore(archive, topic, partition, records, erased, start_of(key))
