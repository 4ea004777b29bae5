"""Matches: what records of one guest say together. Joins of two topics, and patterns over time.

A match is found when a record comes (a *trigger*), or when some time has passed after one, by looking at the guest's
other records: its *history*. The set of matches of a log only grows with the log, so the matches of a part of the log
are those of its end without those of its beginning, and counts of matches add up like any others. The functions that
find them are plain Python over a history, and the same for both layers: the batch layer gives them histories in memory,
the speed layer a store on disk.

All records of a guest are in partitions of one number, so a history is in one place. Time is the broker's: two records
are looked at together if they were appended at most ``reach_seconds`` apart, whatever they say of themselves. How far
time has come in a partition, the newest record of each topic says: an absence is known when all of them have passed it.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from runtime.errors import DefinitionError
from views.aggregate import Aggregate
from views.algebra import Contribution, Field, View

SECOND = 1_000_000
"""Times of histories are in microseconds since 1970."""

CLOCK_SLACK = 600
"""Seconds that records are kept for longer: for a broker's clock that goes back a little."""

Progress = Mapping[tuple[str, int], int]
"""(topic, partition) → time of the newest record there."""


@dataclass(frozen=True)
class Side:
    """Records of ``entity`` that a match can be made of.

    All expressions are Spark SQL over a change: ``current`` and ``original`` (structs of the entity's fields in
    snake_case), ``append_time``. ``order`` sorts a history (bigint), ``group`` divides it (string), ``columns`` are
    what else is kept of a record.
    """

    entity: str
    where: str = "true"
    order: str = "unix_micros(append_time)"
    group: str = "''"
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record in a history: ``time`` is the broker's, ``new`` whether it belongs to the part that is folded now."""

    side: str
    guest: str
    partition: int
    offset: int
    time: int
    order: int
    group: str
    payload: str
    new: bool

    def __getitem__(self, name: str) -> Any:
        return json.loads(self.payload)[name]

    def near(self, other: "Seen", seconds: int) -> bool:
        """Whether both were appended within so many seconds."""
        return abs(self.time - other.time) <= seconds * SECOND


class History(Protocol):
    """The records of one guest."""

    def first(self, what: tuple[Any, ...]) -> bool:
        """Whether this is asked for the first time: so that what many triggers lead to is looked at once."""

    def groups(self, side: str) -> Sequence[str]:
        """The groups that there are."""

    def range(self, side: str, group: str, low: int, high: int) -> Iterator[Seen]:
        """Records with ``low`` <= order <= ``high``, in that order, equal ones by offset."""


Find = Callable[[Seen, History], Iterator[tuple[Any, ...]]]


@dataclass(frozen=True)
class Trigger:
    """``find`` is called with each new record of a side, or with each of which ``after_seconds`` have passed. It gives
    the matches that exist because of it, values in the order of the view's ``match``; the same one may be given
    twice."""

    find: Find
    after_seconds: int = 0


@dataclass(frozen=True, kw_only=True)
class Matches(Aggregate):
    """A view of matches: ``keys`` and ``measures`` over the columns ``match``, weight 1.

    ``entity`` is the one whose records complete most matches (coverage is told by its topic). ``reach_seconds``: how
    far apart the records of a match were appended at most; None: any distance, so all of them are kept. ``alert``: each
    match is also written to the topic ``alert.<name>``. Raises DefinitionError, when defined, for a trigger without
    its side.
    """

    sides: Mapping[str, Side]
    triggers: Mapping[str, Trigger]
    match: tuple[Field, ...]
    reach_seconds: int | None
    alert: bool = False

    def __post_init__(self) -> None:
        if unknown := self.triggers.keys() - self.sides.keys():
            raise DefinitionError(f"view {self.name}: a trigger for {sorted(unknown)}, and sides {sorted(self.sides)}")
        if self.reach_seconds is not None:
            late = max(trigger.after_seconds for trigger in self.triggers.values())
            if late > self.reach_seconds:
                raise DefinitionError(f"view {self.name}: waits {late} s, and reaches {self.reach_seconds} s")
        if self.where != "true" or self.unnest is not None:
            raise DefinitionError(f"view {self.name}: what is matched is said by its sides, not by where or unnest")

    @property
    def contribution(self) -> Contribution:
        return Contribution(self.name, f"matched = '{self.name}'", self._all_keys, self._states)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of its sides."""
        return tuple(dict.fromkeys(f"changelog.{side.entity}" for side in self.sides.values()))

    @property
    def kept_seconds(self) -> int | None:
        """How long a record has to be kept: a match looks back that far from a record, and asks of what it finds there
        whether it was a match before."""
        return None if self.reach_seconds is None else 2 * self.reach_seconds

    def progress(self, progress: Progress, partition: int) -> int:
        """Up to when everything that a history can hold is known."""
        return min(progress.get((topic, partition), 0) for topic in self.topics)

    def found(self, triggering: Iterable[Seen], history: History) -> Iterator[str]:
        """The matches that records trigger, each once, as JSON objects."""
        names = [column.name for column in self.match]
        matches = {
            match: None for seen in triggering for match in self.triggers[seen.side].find(seen, history)
        }  # a dict: in the order in which they were found
        return (json.dumps(dict(zip(names, match, strict=True)), default=str) for match in matches)


def matching(views: Iterable[View]) -> list[Matches]:
    """Those of the views that are found by matching."""
    return [view for view in views if isinstance(view, Matches)]


def folding(views: Iterable[View]) -> list[View]:
    """The others: folds of single changes."""
    return [view for view in views if not isinstance(view, Matches)]


SIDE_DDL = (
    "view string, side string, guest string, topic string, kafka_partition int, kafka_offset bigint, time bigint, "
    "`order` bigint, `group` string, payload string"
)
MATCHED_DDL = "matched string, guest string, payload string"
MATCHED = pa.schema([(name, pa.string()) for name in ("matched", "guest", "payload")])


def sides(records: DataFrame, views: Sequence[Matches]) -> DataFrame:
    """Typed records → rows of ``SIDE_DDL``: one for each side that a change is of."""
    return (
        records.where("kind = 'change'")
        .select("topic", "kafka_partition", "kafka_offset", "append_time", "current", "original")
        .selectExpr(
            f"{_GUEST} AS guest", "topic", "kafka_partition", "kafka_offset", "unix_micros(append_time) AS time",
            f"explode({_array(views)}) AS s",
        )
        .select("s.view", "s.side", "guest", "topic", "kafka_partition", "kafka_offset", "time", "s.order", "s.group",
                "s.payload")
    )  # fmt: skip


def side_record(views: Sequence[Matches]) -> str:
    """Spark SQL over a typed record of any kind: place, time and guest with the sides that it is of, as JSON."""
    return (
        "to_json(named_struct('topic', topic, 'kafka_partition', kafka_partition, 'kafka_offset', kafka_offset, "
        f"'time', unix_micros(append_time), 'guest', {_GUEST}, 'sides', if(kind = 'change', {_array(views)}, {_NONE})))"
    )


def side_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What :func:`side_record` made, read → rows of ``SIDE_DDL``."""
    place = {name: record.get(name) for name in ("topic", "kafka_partition", "kafka_offset", "time", "guest")}
    return [{**place, **side} for side in record["sides"]]


_GUEST = "coalesce(current.guest_ref, original.guest_ref, current.ref, original.ref)"
_NONE = "cast(array() AS array<struct<view: string, side: string, order: bigint, group: string, payload: string>>)"


def _array(views: Sequence[Matches]) -> str:
    """Spark SQL over a change: the sides that it is of."""
    parts = []
    for view in views:
        for name, side in view.sides.items():
            kept = ", ".join(f"'{column}', {expression}" for column, expression in side.columns.items())
            payload = f"to_json(named_struct({kept}))" if kept else "''"
            parts.append(
                f"if(topic = 'changelog.{side.entity}' AND ({side.where}), array(named_struct('view', '{view.name}', "
                f"'side', '{name}', 'order', cast({side.order} AS bigint), 'group', coalesce(cast({side.group} AS "
                f"string), ''), 'payload', {payload})), {_NONE})"
            )
    return f"concat({', '.join(parts)})"


def topics_of(views: Sequence[Matches]) -> tuple[str, ...]:
    """The topics that views of matches look at."""
    return tuple(dict.fromkeys(topic for view in views for topic in view.topics))


def progress_of(records: DataFrame, *positions: str) -> list[Progress]:
    """How far time has come in records of any kind (with topic, kafka_partition and append_time) for each condition of
    ``positions``: Spark SQL that is true below a position. One scan."""
    newest = [
        F.unix_micros(F.max(F.when(F.expr(position), F.col("append_time")))).alias(f"time_{number}")
        for number, position in enumerate(positions)
    ]
    rows = records.groupBy("topic", "kafka_partition").agg(*newest).collect()
    return [
        {(row["topic"], row["kafka_partition"]): time for row in rows if (time := row[f"time_{number}"]) is not None}
        for number in range(len(positions))
    ]


class Once:
    """What was asked for already, in one look at a history."""

    def __init__(self) -> None:
        self._asked: set[tuple[Any, ...]] = set()

    def first(self, what: tuple[Any, ...]) -> bool:
        """See :class:`History`."""
        new = what not in self._asked
        self._asked.add(what)
        return new


class Remembered(Once):
    """The history of one guest for one view, in memory."""

    def __init__(self, records: Iterable[Seen]) -> None:
        super().__init__()
        self._there: dict[str, dict[str, list[Seen]]] = {}
        for seen in records:
            self._there.setdefault(seen.side, {}).setdefault(seen.group, []).append(seen)
        for groups in self._there.values():
            for members in groups.values():
                members.sort(key=_place)

    def groups(self, side: str) -> Sequence[str]:
        """See :class:`History`."""
        return list(self._there.get(side, ()))

    def range(self, side: str, group: str, low: int, high: int) -> Iterator[Seen]:
        """See :class:`History`."""
        members = self._there.get(side, {}).get(group, [])
        for at in range(bisect_left(members, (low, -1), key=_place), len(members)):
            if members[at].order > high:
                return
            yield members[at]


def _place(seen: Seen) -> tuple[int, int]:
    return seen.order, seen.offset


def matched(
    rows: DataFrame, views: Sequence[Matches], start: Mapping[str, Mapping[int, int]], before: Progress, after: Progress
) -> DataFrame:
    """The matches of the part of a log from ``start`` on: rows of ``SIDE_DDL``, which reach back as far as a match
    does → rows of ``MATCHED_DDL``.

    ``before``, ``after``: how far time has come at the start and at the end.
    """
    named = {view.name: view for view in views}

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lines = (line for batch in batches for line in batch.to_pylist())
        for (guest, name), group in groupby(lines, key=lambda line: (line["guest"], line["view"])):
            view = named[name]
            records = [seen_in(line, start) for line in group]
            triggering = [seen for seen in records if triggers(view, seen, before, after)]
            if triggering:
                found = [
                    {"matched": name, "guest": guest, "payload": match}
                    for match in view.found(triggering, Remembered(records))
                ]
                if found:
                    yield pa.RecordBatch.from_pylist(found, schema=MATCHED)

    placed = rows.repartition("guest").sortWithinPartitions("guest", "view")
    return placed.mapInArrow(find, MATCHED_DDL)


def seen_in(line: Mapping[str, Any], start: Mapping[str, Mapping[int, int]]) -> Seen:
    """A row of ``SIDE_DDL`` as it stands in a history; new from ``start`` on."""
    partition, offset = line["kafka_partition"], line["kafka_offset"]
    new = offset >= start[line["topic"]][partition]
    side, guest, time, order, group = (line[name] for name in ("side", "guest", "time", "order", "group"))
    return Seen(side, guest, partition, offset, time, order, group, line["payload"], new)


def triggers(view: Matches, seen: Seen, before: Progress, after: Progress) -> bool:
    """Whether a record is to be looked at: it is new, or the time after it has passed now: it is past it, because more
    may come of the last millisecond that is known."""
    trigger = view.triggers.get(seen.side)
    if trigger is None or not trigger.after_seconds:
        return trigger is not None and seen.new
    due = seen.time + trigger.after_seconds * SECOND
    return view.progress(before, seen.partition) <= due < view.progress(after, seen.partition)


def match_rows(found: DataFrame, views: Sequence[Matches]) -> DataFrame:
    """Rows of ``MATCHED_DDL`` → what the shared aggregation folds: ``matched``, ``guest``, the columns of all matches.

    Raises DefinitionError if two views give one name two types.
    """
    types: dict[str, str] = {}
    for view in views:
        for column in view.match:
            if types.setdefault(column.name, column.type) != column.type:
                raise DefinitionError(f"view {view.name}: {column.name} is of another type in another view of matches")
    ddl = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    return found.select(
        "matched", "guest", F.lit(1).alias("weight"), F.lit(None).cast("bigint").alias("kafka_offset"),
        F.from_json("payload", ddl).alias("m"),
    ).select("matched", "guest", "weight", "kafka_offset", "m.*")  # fmt: skip
