"""The algebra of views: folds made of increments that add up.

A change of the log becomes weighted rows: ``+1`` for its ``current``, ``-1`` for its ``original``. Each view turns a
weighted row into *contributions* (keys and inputs), and reduces contributions with equal keys by reducers that are
associative and commutative. So any part of the log can be folded anywhere, in any order and in any pieces, and the
results add up to the fold of the whole. That is what makes one definition serve both layers.

Expressions in definitions are Spark SQL over the columns of a weighted row: the entity's fields in snake_case
(``created_at``, ``country``, …), ``weight`` (+1 or -1), ``newest`` (true for the row that is the entity's newest
version after the change: the ``current``, or on a delete the ``original``), ``row`` (all fields as one struct),
``topic``, ``kafka_partition``, ``kafka_offset``, ``append_time``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

REDUCERS: Mapping[str, str] = {
    "sum": "sum({0})",
    "min": "min({0})",
    "max": "max({0})",
    "newest": "max_by({0}, {1})",
}
"""SQL that Spark and Trino both read; {0} is the column, {1} the offset that orders versions.

Every reducer is associative and commutative, which is the whole condition for a view to be exact in two layers.
"""


@dataclass(frozen=True)
class Field:
    """A column of a view's partial states: its name, Spark SQL type, and what it means to a reader."""

    name: str
    type: str
    comment: str


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


@dataclass(frozen=True)
class Read:
    """A column that people read: Trino SQL over the merged states."""

    name: str
    expression: str
    comment: str


class View(ABC):
    """A fold of the log. Subclasses are the kinds of view; instances are the views."""

    name: str
    comment: str
    entity: str
    pipeline: str = "main"

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
            f"{REDUCERS[state.reducer].format(state.field.name, 'kafka_offset')} AS {state.field.name}"
            for state in self.contribution.states
        ]
        union = "\n  UNION ALL\n  ".join(parts)
        return f"SELECT {', '.join([*keys, *sums])}\nFROM (\n  {union}\n)\nGROUP BY {', '.join(keys)}"

    def read_sql(self, states: str) -> str:
        """Trino SELECT of what people read, over the SELECT of merged states."""
        columns = ",\n  ".join(f"{read.expression} AS {read.name}" for read in self.reads)
        return f"SELECT\n  {columns}\nFROM (\n{states}\n)\nWHERE {self.present}"
