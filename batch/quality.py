"""What must hold of the archive before anything is built on it and published. Asked of Trino, so that it is checked by
another engine than the one that wrote it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batch.backlog import least, served_vectors
from changelog.classify import BAD
from changelog.positions import Vector
from changelog.topics import LOST_TAIL, end_offsets
from runtime import ops
from runtime.errors import QualityError
from runtime.settings import ENTITIES, Settings, topic_of

Query = Callable[[str], Sequence[Sequence[Any]]]
"""Runs one SQL statement in Trino and returns its rows."""


@dataclass(frozen=True)
class Coverage:
    """What one partition of an archive table holds.

    ``end``: its archived position. ``offsets``: how many offsets its rows stand for. ``twice_sum``: twice the sum of
    those offsets.
    """

    table: str
    partition: int
    end: int
    offsets: int
    twice_sum: int

    @property
    def is_whole(self) -> bool:
        """Whether the offsets are 0 … end - 1, each once. The sum tells a hole that a double makes up for in number."""
        return self.offsets == self.end and self.twice_sum == self.end * (self.end - 1)


@dataclass(frozen=True)
class Share:
    """How many records of a table since the last publication are bad."""

    table: str
    bad: int
    records: int


def check_archive(query: Query, settings: Settings) -> dict[str, int]:
    """:func:`check` against the log, from what is served, with the limits of the settings."""
    with ops.connect(settings) as connection:
        since = least(served_vectors(connection))
    limits = settings.batch
    return check(query, lambda: end_offsets(settings), since, limits.max_bad_share, limits.min_bad_records)


def check(
    query: Query, ends: Callable[[], Vector], since: Vector, max_bad_share: float, min_bad_records: int
) -> dict[str, int]:
    """Check every archive table; return how many records each has got since ``since``, what is served.

    ``ends`` gives Kafka's end offsets; it is called after the archive was asked, which may be growing. Raises
    QualityError with a line for each fault: table, partition, numbers, remedy. Changes nothing.
    """
    coverages = [found for entity in ENTITIES for found in coverage(query, entity)]
    faults = [_broken(query, found) for found in coverages if not found.is_whole]
    faults += beyond(coverages, ends())
    shares = [share(query, entity, since.get(topic_of(entity), {})) for entity in ENTITIES]
    faults += too_bad(shares, max_bad_share, min_bad_records)
    if faults:
        raise QualityError("nothing is published: " + "; ".join(faults))
    return {found.table: found.records for found in shares}


def table_of(entity: str) -> str:
    """``lake.archive."order"``: an entity may be a word of SQL."""
    return f'lake.archive."{entity}"'


def coverage(query: Query, entity: str) -> list[Coverage]:
    """What each partition of the table of ``entity`` holds. Reads two columns of all rows."""
    rows = query(
        "SELECT kafka_partition, max(last_offset) + 1, sum(last_offset - kafka_offset + 1), "
        "sum(CAST(kafka_offset + last_offset AS decimal(38, 0)) * (last_offset - kafka_offset + 1)) "
        f"FROM {table_of(entity)} GROUP BY kafka_partition ORDER BY kafka_partition"
    )
    return [
        Coverage(table_of(entity), partition, end, offsets, int(twice_sum))
        for partition, end, offsets, twice_sum in rows
    ]


def _broken(query: Query, found: Coverage) -> str:
    """Say where the first fault of a partition is: a gap before a row, or a row at or before the end of the last."""
    rows = query(
        "SELECT kafka_offset, before FROM (SELECT kafka_offset, "
        "lag(last_offset, 1, -1) OVER (ORDER BY kafka_offset, last_offset) AS before "
        f"FROM {found.table} WHERE kafka_partition = {found.partition}) "
        "WHERE kafka_offset <> before + 1 ORDER BY kafka_offset LIMIT 1"
    )
    where = "the place could not be found"
    for offset, before in rows:
        where = f"{before + 1} to {offset - 1} are missing" if offset > before else f"{offset} is there twice"
    return (
        f"{found.table}, partition {found.partition}: its rows stand for {found.offsets} offsets and end at "
        f"{found.end}, first fault: {where}. The table is made from the raw objects and can be made anew: anabranch "
        f"drop {found.table.removeprefix('lake.').replace(chr(34), '')}, then anabranch batch --full"
    )


def beyond(coverages: Sequence[Coverage], ends: Vector) -> list[str]:
    """A line for each archived position that lies behind the end of the log."""
    topics = {table_of(entity): topic_of(entity) for entity in ENTITIES}
    found = []
    for one in coverages:
        end = ends.get(topics[one.table], {}).get(one.partition, 0)
        if one.end > end:
            found.append(
                f"{one.table}, partition {one.partition}: archived up to {one.end}, but {topics[one.table]} ends at "
                f"{end} in Kafka: {LOST_TAIL}"
            )
    return found


def share(query: Query, entity: str, since: dict[int, int]) -> Share:
    """The bad among the records of ``entity`` at and after ``since``. Cost follows the new records."""
    known = " OR ".join(
        f"(kafka_partition = {partition} AND kafka_offset < {offset})" for partition, offset in since.items()
    )
    ((bad, records),) = query(
        f"SELECT count(*) FILTER (WHERE kind = '{BAD}'), count(*) FROM {table_of(entity)} "
        f"WHERE kind <> 'empty' AND NOT ({known or 'false'})"
    )
    return Share(table_of(entity), bad, records)


def too_bad(shares: Sequence[Share], max_bad_share: float, min_bad_records: int) -> list[str]:
    """A line for each table with too many bad records."""
    return [
        f"{one.table}: {one.bad} of the {one.records} records since the last publication are bad, more than "
        f'{max_bad_share:.0%}. Most often a producer has changed its format: anabranch query "SELECT topic, reason, '
        'count(*) FROM ops.bad_records GROUP BY 1, 2". If they are rightly bad, publish by hand: anabranch batch'
        for one in shares
        if one.bad >= min_bad_records and one.bad > max_bad_share * one.records
    ]
