"""Sessions: what one guest does without a pause, found from fragments that add up.

Time is cut into slots as long as the gap, so two events of a guest in one slot are always in one session: the events
of a slot are a *fragment* (its first, its last, how many). Fragments of neighbouring slots are one session if they are
closer than the gap, which the serving SQL finds when it is asked. So a late event closes a gap by being added, and a
session joins across epochs and across the boundary like any other sum.
"""

from dataclasses import dataclass

from runtime.errors import DefinitionError
from views.aggregate import IMMUTABLE, ROWS
from views.algebra import Contribution, Field, Key, Read, State, View


@dataclass(frozen=True, kw_only=True)
class Sessions(View):
    """Sessions of each guest over the records of ``entity``; a pause of ``gap_seconds`` or more ends one.

    Raises DefinitionError, when defined, for an entity that changes: an end cannot be taken back.
    """

    name: str
    comment: str
    entity: str
    gap_seconds: int
    pipeline: str = "main"
    defers: bool = False

    def __post_init__(self) -> None:
        if self.entity not in IMMUTABLE:
            raise DefinitionError(
                f"view {self.name}: a session cannot take a record back, and {self.entity!r} is updated and deleted; "
                f"it is exact only on {', '.join(sorted(IMMUTABLE))}"
            )

    @property
    def contribution(self) -> Contribution:
        keys = (
            Key(Field("guest_ref", "string", "the guest"), "guest_ref"),
            Key(
                Field("slot", "bigint", f"number of the {self.gap_seconds} seconds since 1970 in which they are"),
                f"cast(floor(unix_seconds(created_at) / {self.gap_seconds}) AS bigint)",
            ),
        )
        states = (
            ROWS,
            State(Field("first_at", "timestamp", "the first of the slot"), "created_at", "min"),
            State(Field("last_at", "timestamp", "the last of the slot"), "created_at", "max"),
        )
        return Contribution(self.name, f"topic = 'changelog.{self.entity}' AND weight <> 0", keys, states)

    @property
    def reads(self) -> tuple[Read, ...]:
        return (
            Read("guest_ref", "guest_ref", "the guest"),
            Read("started_at", "started_at", "its first event"),
            Read("ended_at", "ended_at", "its last event"),
            Read("events", "rows", "number of events"),
        )

    @property
    def identity(self) -> tuple[str, ...]:
        """Several sessions of a guest are told apart by when they began."""
        return ("guest_ref", "started_at")

    @property
    def present(self) -> str:
        return "rows <> 0"

    def read_sql(self, states: str) -> str:
        """As :meth:`View.read_sql`, over fragments that were joined."""
        return super().read_sql(
            "SELECT guest_ref, min(first_at) AS started_at, max(last_at) AS ended_at, sum(rows) AS rows\n"
            "FROM (\n  SELECT *, sum(begins) OVER (PARTITION BY guest_ref ORDER BY slot) AS session\n  FROM (\n"
            "    SELECT *, CASE WHEN first_at < lag(last_at) OVER (PARTITION BY guest_ref ORDER BY slot) "
            f"+ INTERVAL '{self.gap_seconds}' SECOND THEN 0 ELSE 1 END AS begins\n"
            f"    FROM (\n{states}\n    )\n    WHERE rows <> 0\n  )\n)\nGROUP BY guest_ref, session"
        )
