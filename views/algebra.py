"""The algebra of views: folds made of increments that add up.

A change of the log becomes weighted rows: ``+1`` for its ``current``, ``-1`` for its ``original``. Each view turns a
weighted row into *contributions* (keys and inputs), and reduces contributions with equal keys by reducers that are
associative and commutative. So any part of the log can be folded anywhere, in any order and in any pieces, and the
results add up to the fold of the whole. That is what makes one definition serve both layers.

Expressions in definitions are Spark SQL over the columns of a weighted row: the entity's fields in snake_case
(``created_at``, ``country``, …), ``weight`` (+1 or -1), ``newest`` (true for the row that is the entity's newest
version after the change: the ``current``, or on a delete the ``original``), ``row`` (all fields as one struct),
``topic``, ``kafka_partition``, ``kafka_offset``, ``append_time``.

A view may leave the changes of *batch sources* (services that write in bulk) to the batch layer (``defers``). Then

    merged(view) = batch(records below the boundary) + speed(records from the boundary on, but for theirs)

which is late for theirs by at most one batch run, and the fold of the whole again as soon as the boundary passes them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Reducer:
    """How the inputs of one key become a partial state, and partial states one.

    ``fold`` is Spark SQL over the inputs, ``add`` Trino SQL over partial states (Spark reads it too, unless
    :mod:`views.fold` knows better); {0} is the column, {1} the offset that orders versions. ``input`` is the type of
    the inputs where it is not the state's, ``folded`` that of what ``fold`` gives before it is encoded.
    """

    fold: str
    add: str
    input: str | None = None
    folded: str | None = None


def _same(sql: str) -> Reducer:
    return Reducer(sql, sql)


REDUCERS: Mapping[str, Reducer] = {
    "sum": _same("sum({0})"),
    "min": _same("min({0})"),
    "max": _same("max({0})"),
    "newest": _same("max_by({0}, {1})"),
    "distinct": Reducer(
        "collect_set({0})", "CAST(merge(CAST({0} AS HyperLogLog)) AS varbinary)", "bigint", "array<bigint>"
    ),
    "list": Reducer("collect_list({0})", "flatten(array_agg({0}))", "string", "array<string>"),
}
"""Every reducer is associative and commutative, which is the whole condition for a view to be exact in two layers."""


@dataclass(frozen=True)
class Field:
    """A column of a view's partial states: its name, Spark SQL type, and what it means to a reader. ``personal``: it
    says who a guest is, so analysts do not see it."""

    name: str
    type: str
    comment: str
    personal: bool = False


@dataclass(frozen=True)
class Key:
    """A dimension: ``expression`` over a weighted row gives its value; rows with equal keys are reduced together."""

    field: Field
    expression: str


@dataclass(frozen=True)
class State:
    """A partial state: ``expression`` gives one row's input (weight included), ``reducer`` joins inputs and states."""

    field: Field
    expression: str
    reducer: str


@dataclass(frozen=True)
class Contribution:
    """What the shared aggregation needs to know of one view: when a row concerns it, its keys and its states.

    ``unnest`` names an array column; then keys and states are over ``item``, once for each element.
    """

    name: str
    condition: str
    keys: tuple[Key, ...]
    states: tuple[State, ...]
    unnest: str | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the partial states: keys, then states."""
        return (*(key.field for key in self.keys), *(state.field for state in self.states))


def deferring(contribution: Contribution, services: Sequence[str], unless: str = "false") -> Contribution:
    """The same, of rows that have ``service_name`` too, without the changes that one of ``services`` wrote.

    ``unless``: Spark SQL over a weighted row; where it holds, the change counts all the same.
    """
    if not services:
        return contribution
    condition = f"({contribution.condition}) AND ({unless} OR NOT {written_by(services)})"
    return replace(contribution, condition=condition)


def written_by(services: Sequence[str]) -> str:
    """Spark SQL over a row that has ``service_name``: whether one of ``services`` wrote it; never null."""
    names = ", ".join("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in services)
    return f"coalesce(service_name IN ({names}), false)" if services else "false"


@dataclass(frozen=True)
class Read:
    """A column that people read: Trino SQL over the merged states. ``personal``: as a field's."""

    name: str
    expression: str
    comment: str
    personal: bool = False


class View(ABC):
    """A fold of the log. Subclasses are the kinds of view; instances are the views."""

    name: str
    comment: str
    entity: str
    pipeline: str = "main"
    defers: bool = False
    """Whether the speed side leaves the changes of batch sources (``speed.batch_services``) to the batch side. Their
    entities have to be theirs alone: a change by another service would be counted before what it changes."""

    @property
    @abstractmethod
    def contribution(self) -> Contribution:
        """Keys and partial states: what both layers store."""

    @property
    @abstractmethod
    def reads(self) -> tuple[Read, ...]:
        """The columns of ``serving.<view>``, in order."""

    @property
    @abstractmethod
    def present(self) -> str:
        """Trino condition over the merged states: which groups still exist (weights may have cancelled out)."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it is of."""
        return (f"changelog.{self.entity}",)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell the rows that people read apart."""
        keys = {key.field.name for key in self.contribution.keys}
        return tuple(read.name for read in self.reads if read.name in keys)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Columns of ``batch.<view>``, ``serving.<view>_states`` and the view's struct in ``speed.<pipeline>``."""
        return self.contribution.fields

    def states_sql(self, parts: list[str]) -> str:
        """Trino SELECT that adds partial states: one row for each key.

        ``parts`` are SELECTs with this view's columns (the batch side, the speed side). Groups that cancelled out are
        kept here; :meth:`read_sql` leaves them away.
        """
        keys = [key.field.name for key in self.contribution.keys]
        sums = [
            f"{REDUCERS[state.reducer].add.format(state.field.name, 'kafka_offset')} AS {state.field.name}"
            for state in self.contribution.states
        ]
        union = "\n  UNION ALL\n  ".join(parts)
        return f"SELECT {', '.join([*keys, *sums])}\nFROM (\n  {union}\n)\nGROUP BY {', '.join(keys)}"

    def read_sql(self, states: str) -> str:
        """Trino SELECT of what people read, over the SELECT of merged states."""
        columns = ",\n  ".join(f"{read.expression} AS {read.name}" for read in self.reads)
        return f"SELECT\n  {columns}\nFROM (\n{states}\n)\nWHERE {self.present}"
