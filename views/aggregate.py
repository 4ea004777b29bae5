"""Aggregates: dimensions and measures over weighted rows. They follow updates and deletes with no special case."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runtime.errors import DefinitionError
from views.algebra import REDUCERS, Contribution, Field, Key, Read, State, View

ROWS = State(Field("rows", "bigint", "entities in this group, by weight; a group with none has ended"), "weight", "sum")

IMMUTABLE = frozenset({"event"})


class Measure(Protocol):
    """One figure of an aggregate, or a few that share their states."""

    retractable: bool
    """False if it cannot take back: then it is allowed on immutable entities only."""

    @property
    def states(self) -> tuple[State, ...]:
        """The partial states that it needs; shared where two measures name the same."""

    @property
    def reads(self) -> tuple[Read, ...]:
        """The columns that people read."""


@dataclass(frozen=True)
class Count:
    """How many entities are in the group now."""

    name: str
    comment: str
    retractable = True

    @property
    def states(self) -> tuple[State, ...]:
        return ()

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, "rows", self.comment),)


@dataclass(frozen=True)
class Sum:
    """Sum of a money or quantity expression (decimal with four places, so that equality is exact); null counts as 0."""

    name: str
    expression: str
    comment: str
    retractable = True

    @property
    def states(self) -> tuple[State, ...]:
        value = f"coalesce(if(weight < 0, -({self.expression}), {self.expression}), 0)"
        return (State(Field(self.name, "decimal(38,4)", self.comment), value, "sum"),)

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, self.name, self.comment),)


@dataclass(frozen=True)
class Average:
    """Average over the entities of the group of what ``Sum`` adds: sum divided by count, to four places."""

    name: str
    of: Sum
    comment: str
    retractable = True

    @property
    def states(self) -> tuple[State, ...]:
        return self.of.states

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, f"{self.of.name} / rows", self.comment),)


GAMMA = 1.01 / 0.99
"""Each bucket's upper bound is that much above its lower bound, so its middle is within 1 % of all that is in it."""

_SHIFT = 1000
"""Makes the numbers of buckets positive for amounts from 0.0001 on, so that their sign is that of the amounts."""


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of an expression, within 1 % of a value that is there: a histogram with logarithmic buckets.

    ``columns``: name → the share of the group that is not above it (0.5: the median). The bucket is one more key of the
    partial states, so that a histogram is counts, which add up and can be taken back like any others.
    """

    name: str
    expression: str
    columns: Mapping[str, float]
    comment: str
    retractable = True

    @property
    def states(self) -> tuple[State, ...]:
        return ()

    @property
    def cell(self) -> Key:
        """The bucket. Negative amounts are mirrored, 0 is 0."""
        amount = f"cast({self.expression} AS double)"
        number = f"cast({_SHIFT} + ceil(ln(abs({amount})) / {math.log(GAMMA)!r}) AS int)"
        return Key(
            Field(f"{self.name}_bucket", "int", f"bucket of the histogram of {self.name}"),
            f"CASE WHEN {amount} = 0 THEN 0 WHEN {amount} > 0 THEN {number} ELSE -{number} END",
        )

    @property
    def collected(self) -> str:
        """Trino SQL that puts the buckets of one group together."""
        return (
            f"array_agg(CAST(ROW({self.name}_bucket, rows) AS ROW(bucket integer, number bigint)) "
            f"ORDER BY {self.name}_bucket) FILTER (WHERE rows <> 0) AS {self.name}_histogram"
        )

    @property
    def reads(self) -> tuple[Read, ...]:
        return tuple(Read(name, self._quantile(share), f"{self.comment}, within 1 %: {share:.0%} are not above it")
                     for name, share in self.columns.items())  # fmt: skip

    def _quantile(self, share: float) -> str:
        """Trino SQL over the histogram: the middle of the bucket in which the entity of this rank is."""
        step = "CAST(ROW({0}, {1}) AS ROW(seen bigint, bucket integer))"
        bucket = (
            f"reduce({self.name}_histogram, {step.format(0, 'NULL')}, (s, b) -> IF(s.bucket IS NOT NULL, s, "
            f"{step.format('s.seen + b.number', f'IF(s.seen + b.number >= ceiling({share} * rows), b.bucket)')}), "
            "s -> s.bucket)"
        )
        middle = f"{2 / (1 + GAMMA)!r} * power({GAMMA!r}, abs(bucket) - {_SHIFT})"
        return f"CAST(element_at(transform(ARRAY[{bucket}], bucket -> sign(bucket) * {middle}), 1) AS decimal(18,4))"


@dataclass(frozen=True)
class TopK:
    """The ``k`` most frequent values of an expression with their numbers, the most frequent first, equal ones in the
    order of the values; exact. Null does not count.

    The value is one more key of the partial states, so that the numbers add up and can be taken back.
    """

    name: str
    expression: str
    k: int
    comment: str
    retractable = True

    @property
    def states(self) -> tuple[State, ...]:
        return ()

    @property
    def cell(self) -> Key:
        """The value."""
        return Key(Field(f"{self.name}_value", "string", f"value counted for {self.name}"), self.expression)

    @property
    def collected(self) -> str:
        """Trino SQL that puts the values of one group together."""
        return (
            f"slice(array_agg(CAST(ROW({self.name}_value, rows) AS ROW(value varchar, number bigint)) ORDER BY "
            f"rows DESC, {self.name}_value) FILTER (WHERE rows <> 0 AND {self.name}_value IS NOT NULL), 1, {self.k}) "
            f"AS {self.name}"
        )

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, self.name, self.comment),)


@dataclass(frozen=True)
class Distinct:
    """About how many different values an expression has: HyperLogLog, standard error 1.6 %. Null does not count."""

    name: str
    expression: str
    comment: str
    retractable = False

    @property
    def states(self) -> tuple[State, ...]:
        field = Field(self.name, "binary", f"{self.comment}; a HyperLogLog of Trino")
        return (State(field, f"if({self.expression} IS NULL, NULL, xxhash64({self.expression}))", "distinct"),)

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, f"cardinality(CAST({self.name} AS HyperLogLog))", self.comment),)


@dataclass(frozen=True)
class Smallest:
    """The smallest value of an expression."""

    name: str
    expression: str
    type: str
    comment: str
    reducer: str = field(default="min", init=False)
    retractable = False

    @property
    def states(self) -> tuple[State, ...]:
        return (State(Field(self.name, self.type, self.comment), self.expression, self.reducer),)

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, self.name, self.comment),)


@dataclass(frozen=True)
class Largest(Smallest):
    """The largest value of an expression."""

    reducer: str = field(default="max", init=False)


@dataclass(frozen=True)
class First:
    """The value of an expression in the record whose ``at`` is the earliest; of equal ones the lowest offset. A record
    without value or time does not count. ``at`` is a timestamp, ``type`` the value's."""

    name: str
    expression: str
    at: str
    type: str
    comment: str
    reducer: str = field(default="min", init=False)
    retractable = False

    @property
    def states(self) -> tuple[State, ...]:
        type_ = f"struct<at: timestamp, kafka_offset: bigint, value: {self.type}>"
        pair = f"named_struct('at', {self.at}, 'kafka_offset', kafka_offset, 'value', {self.expression})"
        there = f"if(({self.at}) IS NOT NULL AND ({self.expression}) IS NOT NULL, {pair}, NULL)"
        return (State(Field(self.name, type_, f"{self.comment}, and when"), there, self.reducer),)

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, f"{self.name}.value", self.comment),)


@dataclass(frozen=True)
class Last(First):
    """As :class:`First`, of the record whose ``at`` is the latest; of equal ones the highest offset."""

    reducer: str = field(default="max", init=False)


@dataclass(frozen=True, kw_only=True)
class Aggregate(View):
    """A view of groups: ``keys`` and ``measures`` over the weighted rows of one entity for which ``where`` holds.

    Raises DefinitionError, when defined, for a measure that cannot take back on an entity that changes, and for two
    measures of which each needs a key more (quantiles, top-k): their cells would multiply.
    """

    name: str
    comment: str
    entity: str
    keys: Sequence[Key]
    measures: Sequence[Measure]
    where: str = "true"
    unnest: str | None = None
    pipeline: str = field(default="main")
    defers: bool = False

    def __post_init__(self) -> None:
        for measure in self.measures:
            if not measure.retractable and self.entity not in IMMUTABLE:
                raise DefinitionError(
                    f"view {self.name}: {type(measure).__name__} cannot take a value back, and {self.entity!r} is "
                    f"updated and deleted; it is exact only on {', '.join(sorted(IMMUTABLE))}"
                )
        if len(self._spread) > 1:
            raise DefinitionError(
                f"view {self.name}: {' and '.join(measure.name for measure in self._spread)} each need a key more, and "
                "the view would store every combination; make two views of it"
            )

    @property
    def contribution(self) -> Contribution:
        condition = f"topic = 'changelog.{self.entity}' AND weight <> 0 AND ({self.where})"
        return Contribution(self.name, condition, self._all_keys, self._states, self.unnest)

    @property
    def _all_keys(self) -> tuple[Key, ...]:
        return (*self.keys, *(measure.cell for measure in self._spread))

    @property
    def _states(self) -> tuple[State, ...]:
        return tuple(dict.fromkeys([ROWS, *(state for measure in self.measures for state in measure.states)]))

    @property
    def _spread(self) -> list[Quantiles | TopK]:
        return [measure for measure in self.measures if isinstance(measure, Quantiles | TopK)]

    @property
    def reads(self) -> tuple[Read, ...]:
        keys = (Read(key.field.name, key.field.name, key.field.comment) for key in self.keys)
        return (*keys, *(read for measure in self.measures for read in measure.reads))

    @property
    def present(self) -> str:
        return "rows <> 0"

    def read_sql(self, states: str) -> str:
        """As :meth:`View.read_sql`; where a measure needs a key more, its cells are first put together."""
        return super().read_sql(self._regrouped(states) if self._spread else states)

    def _regrouped(self, states: str) -> str:
        keys = [key.field.name for key in self.keys]
        sums = [
            f"{REDUCERS[state.reducer].add.format(state.field.name, '')} AS {state.field.name}"
            for state in self.contribution.states
        ]
        columns = ",\n  ".join([*keys, *sums, *(measure.collected for measure in self._spread)])
        return f"SELECT\n  {columns}\nFROM (\n{states}\n)\nGROUP BY {', '.join(keys)}"
