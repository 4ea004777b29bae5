"""One aggregation for all views: the fold that both layers run, each over its own part of the log.

Every contribution of every view goes through one explode and one ``groupBy``, in *slots*: typed columns which the
views share, so that the width of the aggregation grows with the widest view and not with their number.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from views.algebra import REDUCERS, Contribution, Field, State
from views.hyperloglog import encoded, merged

_PAYLOAD = "newest"

ENCODE: Mapping[str, Callable[[Column], Column]] = {"distinct": encoded}
"""What makes a partial state of what the reducer gives, where that is not the state itself."""

MERGE: Mapping[str, Callable[[Column], Column]] = {"distinct": lambda states: merged(F.collect_list(states))}
"""How partial states are joined, where SQL that Trino reads as well does not say it."""


@dataclass(frozen=True)
class _Slot:
    name: str
    type: str
    reducer: str | None


class Fold:
    """The shared aggregation of some contributions. Build it once and use it for every epoch or run.

    ``whole rows``: the reducer ``newest`` over several columns of one view is one struct in one slot, so that a row's
    columns stay together and the aggregation stays narrow.
    """

    def __init__(self, contributions: Iterable[Contribution]) -> None:
        self.contributions = tuple(contributions)
        self._slots: dict[str, _Slot] = {}
        self._places: dict[str, list[tuple[Field, str, str | None]]] = {}
        self._inputs: dict[str, dict[str, str]] = {}
        for contribution in self.contributions:
            self._place(contribution)
        self._element = self._elements()

    def _slot(self, kind: str, type_: str, number: int, reducer: str | None) -> str:
        clean = (
            "".join(c if c.isalnum() else "_" for c in type_)
            if len(type_) < 20
            else f"wide_{zlib.crc32(type_.encode()):08x}"
        )
        name = f"{kind}_{clean}_{number}"
        self._slots[name] = _Slot(name, type_, reducer)
        return name

    def _place(self, contribution: Contribution) -> None:
        used: dict[tuple[str, str], int] = {}
        places: list[tuple[Field, str, str | None]] = []
        inputs: dict[str, str] = {}

        def take(kind: str, type_: str, reducer: str | None, expression: str) -> str:
            number = used.get((kind, type_), 0)
            used[kind, type_] = number + 1
            name = self._slot(kind, type_, number, reducer)
            inputs[name] = expression
            return name

        for key in contribution.keys:
            places.append((key.field, take("key", key.field.type, None, key.expression), None))
        newest = [state for state in contribution.states if state.reducer == _PAYLOAD]
        if newest:
            type_ = "struct<" + ", ".join(f"{s.field.name}: {s.field.type}" for s in newest) + ">"
            fields = ", ".join(f"'{s.field.name}', {s.expression}" for s in newest)
            payload = take(_PAYLOAD, type_, _PAYLOAD, f"named_struct({fields})")
        for state in contribution.states:
            if state.reducer == _PAYLOAD:
                places.append((state.field, f"{payload}.{state.field.name}", None))
            else:
                type_ = REDUCERS[state.reducer].input or state.field.type
                slot = take(state.reducer, type_, state.reducer, state.expression)
                places.append((state.field, slot, state.reducer))
        self._places[contribution.name] = places
        self._inputs[contribution.name] = inputs

    def _elements(self) -> str:
        type_ = ", ".join(
            ["view: string", "position: bigint", *(f"{slot.name}: {slot.type}" for slot in self._slots.values())]
        )
        parts = []
        for contribution in self.contributions:
            inputs = self._inputs[contribution.name]
            fields = [f"'view', '{contribution.name}'", "'position', kafka_offset"] + [
                f"'{slot.name}', cast({inputs.get(slot.name, 'null')} AS {slot.type})" for slot in self._slots.values()
            ]
            struct = f"named_struct({', '.join(fields)})"
            none = f"cast(array() AS array<struct<{type_}>>)"
            array = f"array({struct})"
            if contribution.unnest:
                array = f"coalesce(transform({contribution.unnest}, item -> {struct}), {none})"
            parts.append(f"if({contribution.condition}, {array}, {none})")
        return f"concat({', '.join(parts)})"

    def places(self, name: str) -> dict[str, str]:
        """Where the fields of one contribution are among the slots: field name → slot."""
        return {field.name: place for field, place, _ in self._places[name]}

    @property
    def key_slots(self) -> list[str]:
        return [slot.name for slot in self._slots.values() if slot.reducer is None]

    def contributed(self, rows: DataFrame) -> DataFrame:
        """Weighted rows → contributions: ``view``, ``position`` and the slots."""
        return rows.select(F.explode(F.expr(self._element)).alias("c")).select("c.*")

    @cached_property
    def _aggregations(self) -> list[Column]:
        return [
            F.expr(REDUCERS[slot.reducer].fold.format(slot.name, "position"))
            .cast(REDUCERS[slot.reducer].folded or slot.type)
            .alias(slot.name)
            for slot in self._slots.values()
            if slot.reducer is not None
        ]

    def reduced(self, contributed: DataFrame) -> DataFrame:
        """Contributions → one row for each view and key: ``view`` and the slots."""
        return contributed.groupBy("view", *self.key_slots).agg(*self._aggregations)

    def columns(self, name: str) -> list[Column]:
        """The columns of one contribution's partial states, taken from the slots of reduced rows."""
        return [
            ENCODE.get(reducer or "", _as_it_is)(F.col(place)).cast(field.type).alias(field.name)
            for field, place, reducer in self._places[name]
        ]

    @cached_property
    def structs(self) -> list[Column]:
        """One struct column for each contribution, named like it, null on the rows of the others. Made once: a stream
        needs them every epoch."""
        return [
            F.when(F.col("view") == name, F.struct(*self.columns(name))).alias(name)
            for name in (contribution.name for contribution in self.contributions)
        ]

    def increments(self, rows: DataFrame) -> DataFrame:
        """The fold: weighted rows → ``view`` and one struct column for each contribution, one row for each key."""
        return self.reduced(self.contributed(rows)).select("view", *self.structs)


def weighted(changes: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Typed records → weighted rows.

    Takes ``kind, topic, kafka_partition, kafka_offset, append_time, current, original``. A change gives (+1, current)
    and, where present, (-1, original); a record of another kind gives one row of weight 0, which no view folds.
    Adds ``weight``, ``newest``, ``row`` and the fields of ``row``; ``keep`` names further columns to carry along.
    """
    row = "named_struct('weight', {0}, 'newest', {1}, 'row', {2})"
    pieces = F.expr(
        "if(kind = 'change', filter(array("
        + row.format(1, "true", "current")
        + ", "
        + row.format(-1, "current IS NULL", "original")
        + "), w -> w.row IS NOT NULL), array("
        + row.format(0, "false", "current")
        + "))"
    )
    position = ["kind", "topic", "kafka_partition", "kafka_offset", "append_time", *keep]
    return changes.select(*position, F.explode(pieces).alias("w")).select(
        *position, "w.weight", "w.newest", "w.row", "w.row.*"
    )


def combine(contribution: Contribution, partials: DataFrame) -> DataFrame:
    """Partial states of one view → the same columns, one row for each key: what addition means for this view."""
    states = [_joined(state).cast(state.field.type).alias(state.field.name) for state in contribution.states]
    return partials.groupBy(*(key.field.name for key in contribution.keys)).agg(*states)


def _joined(state: State) -> Column:
    if state.reducer in MERGE:
        return MERGE[state.reducer](F.col(state.field.name))
    return F.expr(REDUCERS[state.reducer].add.format(state.field.name, "kafka_offset"))


def _as_it_is(column: Column) -> Column:
    return column
