"""Latest: the newest version of each entity, deleted ones absent. Newest is the highest offset, never a clock."""

from dataclasses import dataclass

from views.algebra import Contribution, Field, Key, Read, State, View


@dataclass(frozen=True, kw_only=True)
class Latest(View):
    """One row for each ``ref`` of ``entity``: its newest version.

    Versions are told apart by (guest_ref, ref): all records of one guest are in one partition, so their offsets can
    be compared. An entity that changes its guest is deleted under the old one and created under the new one.
    ``columns`` are the entity's fields in snake_case with their Spark SQL types, the refs left out.
    """

    name: str
    comment: str
    entity: str
    columns: tuple[Field, ...]
    pipeline: str = "main"
    defers: bool = False

    @property
    def _guest(self) -> str:
        return "ref" if self.entity == "guest" else "guest_ref"

    @property
    def contribution(self) -> Contribution:
        keys = (
            Key(Field("guest_ref", "string", "the guest"), self._guest),
            Key(Field("ref", "string", f"the {self.entity}"), "ref"),
        )
        states = (
            State(Field("kafka_offset", "bigint", "offset of the newest version"), "kafka_offset", "max"),
            State(Field("deleted", "boolean", "whether the newest version is a delete"), "weight < 0", "newest"),
            *(State(column, f"row.{column.name}", "newest") for column in self.columns),
        )
        return Contribution(self.name, f"topic = 'changelog.{self.entity}' AND newest", keys, states)

    def states_sql(self, parts: list[str]) -> str:
        """As :meth:`View.states_sql`, by joining each key's highest offset back to the rows.

        An offset is one row, so the join picks whole rows. ``max_by`` for each column would say the same, but Trino's
        keeps every source page of an array column alive: 26,000 orders with their items asked for more than 2 GB.
        """
        union = "\n  UNION ALL\n  ".join(parts)
        columns = ", ".join(f"versions.{field.name}" for field in self.fields)
        return (
            f"SELECT {columns}\nFROM (\n  {union}\n) versions\nJOIN (\n  SELECT guest_ref, ref, max(kafka_offset) AS "
            f"kafka_offset\n  FROM (\n  {union}\n  )\n  GROUP BY guest_ref, ref\n) newest\nON versions.guest_ref = "
            "newest.guest_ref AND versions.ref = newest.ref AND versions.kafka_offset = newest.kafka_offset"
        )

    @property
    def reads(self) -> tuple[Read, ...]:
        names = [key.field for key in self.contribution.keys if self.entity != "guest" or key.field.name == "ref"]
        return tuple(Read(one.name, one.name, one.comment, one.personal) for one in (*names, *self.columns))

    @property
    def present(self) -> str:
        return "NOT deleted"
