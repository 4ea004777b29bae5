"""Aggregates: dimensions and measures over weighted rows. They follow updates and deletes with no special case."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runtime.errors import DefinitionError
from views.algebra import Contribution, Field, Key, Read, State, View

ROWS = State(Field("rows", "bigint", "entities in this group, by weight; a group with none has ended"), "weight", "sum")

IMMUTABLE = frozenset({"event"})


class Measure(Protocol):
    """One figure of an aggregate."""

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


@dataclass(frozen=True, kw_only=True)
class Aggregate(View):
    """A view of groups: ``keys`` and ``measures`` over the weighted rows of one entity for which ``where`` holds.

    Raises DefinitionError, when defined, for a measure that cannot take back on an entity that changes.
    """

    name: str
    comment: str
    entity: str
    keys: Sequence[Key]
    measures: Sequence[Measure]
    where: str = "true"
    unnest: str | None = None
    pipeline: str = field(default="main")

    def __post_init__(self) -> None:
        for measure in self.measures:
            if not measure.retractable and self.entity not in IMMUTABLE:
                raise DefinitionError(
                    f"view {self.name}: {type(measure).__name__} cannot take a value back, and {self.entity!r} is "
                    f"updated and deleted; it is exact only on {', '.join(sorted(IMMUTABLE))}"
                )

    @property
    def contribution(self) -> Contribution:
        states = dict.fromkeys([ROWS, *(state for measure in self.measures for state in measure.states)])
        condition = f"topic = 'changelog.{self.entity}' AND weight <> 0 AND ({self.where})"
        return Contribution(self.name, condition, tuple(self.keys), tuple(states), self.unnest)

    @property
    def reads(self) -> tuple[Read, ...]:
        keys = (Read(key.field.name, key.field.name, key.field.comment) for key in self.keys)
        return (*keys, *(read for measure in self.measures for read in measure.reads))

    @property
    def present(self) -> str:
        return "rows <> 0"
