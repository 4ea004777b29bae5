"""What the service ``derive`` missed because Kafka has let go of it: derived from the raw archive, where all of it is.

Version for version and patch for patch, in the order of the log and in transactions, as the service would have done it;
so it can be killed and run again, and consumers see nothing but that it came late.
"""

import heapq
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from changelog.archive.columnar import archive_name
from changelog.archive.ranges import EMPTY, Hole, Ranges, gaps
from changelog.archive.secor import ArchivedRecord, hour_in, hour_of, read_object, start_of
from changelog.archive.store import ArchiveObject, ArchiveStore
from changelog.derive import SOURCES, Deriver, known_positions, state
from changelog.derived import GROUP
from changelog.identities import SLACK_SECONDS
from changelog.reader import Entry, Reader
from changelog.topics import start_offsets
from runtime import trino
from runtime.errors import ArchiveError, HoleError, TerminalError
from runtime.settings import Settings, entity_of

log = logging.getLogger("rebuild")


def rebuild(settings: Settings, accept: Sequence[Hole] = ()) -> dict[Hole, int]:
    """Derive what lies between the place up to which everything is derived and the beginning of what Kafka has.

    Returns how many records of each stretch were there; a second call finds no stretch. The service must not run: it is
    fenced. Raises HoleError if the archive lacks something that is not in ``accept``: nothing of that stretch was
    derived then.
    """
    store = ArchiveStore(settings.s3)
    done = {}
    with Deriver(settings) as deriver, Reader(settings, {}, group=GROUP) as group:
        for missed in missing(settings):
            done[missed] = _derive(settings, store, deriver, group.group(), missed, accept)
            log.info("%s: %d records", missed, done[missed])
    return done


def missing(settings: Settings) -> list[Hole]:
    """The stretches that Kafka has let go of before they were derived."""
    positions = known_positions(settings)
    return [
        Hole(topic, partition, positions[topic][partition], start - 1)
        for topic, starts in start_offsets(settings, SOURCES).items()
        for partition, start in starts.items()
        if positions[topic][partition] < start
    ]


def _derive(
    settings: Settings,
    store: ArchiveStore,
    deriver: Deriver,
    group: object,
    missed: Hole,
    accept: Sequence[Hole],
) -> int:
    objects = [item for item in store.list_objects(missed.topic) if item.partition == missed.partition]
    objects = [item for item in objects if start_of(item.key) <= missed.last]
    since = max((start for item in objects if (start := start_of(item.key)) <= missed.first), default=0)
    near = [item for item in objects if start_of(item.key) >= since]
    found = _found(store, near, missed)
    if found.holes and len(near) < len(objects):  # an object may hold more than its neighbours' names promise
        near, found = objects, _found(store, objects, missed)
    _refuse_holes(settings, missed, found.holes, accept)
    if found.records:  # copies are told by what was appended in the horizon before
        horizon = settings.speed.horizon_seconds + SLACK_SECONDS
        near = [item for item in objects if item in near or hour_in(item.key) >= hour_of(found.time - horizon * 1000)]
        shutil.rmtree(state(settings) / f"{missed.topic}-{missed.partition}", ignore_errors=True)
        before = _entries(store, near, missed, (0, missed.first - 1))
        deriver.remember(missed.topic, missed.partition, _chunks(before, settings.derive.max_records))
    derived = 0
    here = _entries(store, near, missed, (missed.first, missed.last))
    for entries in _chunks(here, settings.derive.max_records):
        deriver.write(entries, {missed.topic: {missed.partition: entries[-1].offset + 1}}, group)
        derived += len(entries)
    if derived != found.records:
        raise ArchiveError(f"{missed}: {found.records} records were found and {derived} read; run this again")
    deriver.write([], {missed.topic: {missed.partition: missed.last + 1}}, group)
    return derived


class _Found(NamedTuple):
    """What the archive has of a stretch: how many records, when the first was appended (ms), and what it lacks."""

    records: int
    time: int
    holes: list[tuple[int, int]]


def _found(store: ArchiveStore, objects: Iterable[ArchiveObject], missed: Hole) -> _Found:
    seen, records, first = Ranges(), 0, (missed.last + 1, 0)
    for item in objects:
        for record in _read(store, item):
            if missed.first <= record.offset <= missed.last and seen.add(record.offset):
                records += 1
                first = min(first, (record.offset, record.timestamp_ms))
    end = (missed.last + 1, missed.last + 1)
    return _Found(records, first[1], gaps([*seen.ranges, end], missed.first))


def _refuse_holes(settings: Settings, missed: Hole, holes: list[tuple[int, int]], accept: Sequence[Hole]) -> None:
    """Raise HoleError unless what the raw archive lacks was proven empty when it was ingested, or is accepted."""
    if not holes:
        return
    known = [(one.first, one.last) for one in accept if one[:2] == missed[:2]]
    known += ArchiveStore(settings.s3).empty_ranges(*missed)  # the archiver's notes
    known += _proven_empty(settings, missed)
    lost = []
    for first, last in holes:
        inside = [(max(first, low), min(last, high)) for low, high in known if low <= last and high >= first]
        lost += [Hole(*missed[:2], *gap) for gap in gaps([*inside, (last + 1, last + 1)], first)]
    if lost:
        raise HoleError(
            f"no object of the archive has {', '.join(map(str, lost))}, and ingest has not proven that there was "
            "nothing. Let ingest look first (anabranch batch --no-publish); what is lost for good leaves the versions "
            f"of before in its place: anabranch latest rebuild {' '.join(f'--accept-hole {one}' for one in lost)}"
        )


def _proven_empty(settings: Settings, missed: Hole) -> list[tuple[int, int]]:
    """Ranges that ``archive.<entity>`` knows to be empty: transaction markers, aborted records, accepted holes."""
    catalog, schema, name = archive_name(entity_of(missed.topic)).split(".")
    table = f'{catalog}.{schema}."{name}"'
    sql = (
        f"SELECT kafka_offset, last_offset FROM {table} WHERE kind = '{EMPTY}' AND kafka_partition = "
        f"{missed.partition} AND last_offset >= {missed.first} AND kafka_offset <= {missed.last}"
    )
    try:
        _, rows = trino.execute(trino.connect(settings), sql)
    except TerminalError as error:
        log.warning("%s cannot be asked: %s", table, error)
        return []
    return [(row[0], row[1]) for row in rows]


def _chunks(entries: Iterator[Entry], size: int) -> Iterator[list[Entry]]:
    while chunk := list(islice(entries, size)):
        yield chunk


def _entries(
    store: ArchiveStore, objects: Iterable[ArchiveObject], of: Hole, stretch: tuple[int, int]
) -> Iterator[Entry]:
    """The records of a topic-partition's objects in a stretch (first, last), in the order of offsets, each once."""
    for record in in_order((start_of(item.key), partial(_read, store, item)) for item in objects):
        if record.offset > stretch[1]:
            return
        if record.offset >= stretch[0]:
            yield Entry(of.topic, of.partition, record.offset, record.timestamp_ms, record.key, record.value, {})


def in_order(objects: Iterable[tuple[int, Callable[[], Iterable[ArchivedRecord]]]]) -> Iterator[ArchivedRecord]:
    """The records of objects in the order of offsets, each offset once.

    An object is the lowest offset that it may have, and what opens it; its own records are in order. It is opened when
    its turn comes, so no more are open at once than overlap.
    """
    waiting = sorted(objects, key=lambda one: one[0], reverse=True)
    streams: list[Iterator[ArchivedRecord]] = []
    heads: list[tuple[int, int, ArchivedRecord]] = []

    def advance(number: int) -> None:
        if record := next(streams[number], None):
            heapq.heappush(heads, (record.offset, number, record))

    last = -1
    while waiting or heads:
        while waiting and (not heads or waiting[-1][0] <= heads[0][0]):
            streams.append(iter(waiting.pop()[1]()))
            advance(len(streams) - 1)
        if heads:
            offset, number, record = heapq.heappop(heads)
            advance(number)
            if offset > last:
                last = offset
                yield record


def _read(store: ArchiveStore, item: ArchiveObject) -> Iterator[ArchivedRecord]:
    """The records of an object, up to where it is damaged: what is missing shows as a hole."""
    try:
        yield from read_object(store.get(item.key, item.etag), item.key)
    except ArchiveError as error:
        log.warning("%s", error)
