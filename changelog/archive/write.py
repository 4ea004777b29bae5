"""Records into objects of the raw archive, for the archiver and for what ingest mends.

No object is replaced. One that is damaged stays where it is, and all that is in hand goes beside it.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from changelog.archive.secor import GENERATION, SECORS_GENERATION, object_name, pack_key, read_object
from changelog.archive.sequencefile import Writer
from changelog.archive.store import ArchiveStore
from runtime.errors import ArchiveError, TransientError

log = logging.getLogger("archive")

Record = tuple[int, int, bytes | None, bytes]
"""offset, timestamp in ms, Kafka key, value."""

Patiently = Callable[[Callable[[], Any]], Any]
"""Calls the object store, perhaps again until it answers."""


class Stored(NamedTuple):
    """An object that was put: its name, its number of records, its bytes."""

    name: str
    records: int
    size: int


def at_once(call: Callable[[], Any]) -> Any:
    return call()


def store(
    archive: ArchiveStore,
    topic: str,
    partition: int,
    hour: int,
    start: int,
    records: Sequence[Record],
    patiently: Patiently = at_once,
) -> Stored | None:
    """Put records of one hour into an object named by ``start``; where one is already there, what it does not hold into
    one named by the first of that. One that is damaged stays where it is: all records go beside it, into an object with
    another generation in its name, so that the damaged one can be deleted and nothing goes with it.

    Returns what was put; None where all of it was there. A second call puts nothing.
    """
    generation = GENERATION
    while records:
        name = object_name(archive.prefix, topic, partition, hour, start, generation)
        writer = Writer()
        for offset, timestamp, key, value in records:
            writer.append(pack_key(offset, timestamp, key), value)
        data = writer.close()
        if patiently(lambda: archive.put_if_absent(name, data)):  # noqa: B023  # called at once
            log.info("%s: %d records, %d-%d, %d bytes", name, len(records), records[0][0], records[-1][0], len(data))
            return Stored(name, len(records), len(data))
        there = _offsets(archive, name, patiently)
        left = [record for record in records if record[0] not in there]
        if len(left) < len(records):
            log.info("%s is there and holds %d of %d records", name, len(records) - len(left), len(records))
            records, start, generation = left, left[0][0] if left else start, GENERATION
        else:
            generation = max(generation, SECORS_GENERATION) + 1
    return None


def _offsets(archive: ArchiveStore, name: str, patiently: Patiently) -> set[int]:
    """The offsets that an object holds; none if it is damaged, or if the store answers and cannot give it."""
    try:
        data = patiently(lambda: archive.get(name))
    except (BotoCoreError, ClientError, TransientError) as error:
        patiently(archive.look)
        log.warning("%s cannot be read (%s); what it had is stored beside it", name, error)
        return set()
    try:
        return {record.offset for record in read_object(data, name)}
    except ArchiveError as error:
        log.warning("%s; what it had is stored beside it", error)
        return set()
