"""merged(view) = batch(records below the boundary) + speed(records from the boundary on), as SQL."""

import re
from collections.abc import Callable
from dataclasses import replace

import duckdb
import pytest

from runtime import ops
from serving.sql import EPOCHS, Pin, bad_records, batch_side, boundary, columns, merged, speed_side, states
from views.aggregate import Aggregate, Count, Sum
from views.algebra import Field, Key, View
from views.latest import Latest
from views.registry import all_views, derived_views

pytestmark = pytest.mark.unit

PIN = Pin(snapshot=8_412_345_678, generation=3, epoch=17)

Make = Callable[[View, Pin], str]

every_view = pytest.mark.parametrize("view", all_views(), ids=lambda view: view.name)


both = pytest.mark.parametrize("make", [states, merged])


def aliases(select: str) -> list[str]:
    """The names of the columns of a SELECT of one line."""
    columns = select.removeprefix("SELECT ").split(" FROM ")[0]
    return [column.rsplit(" ", 1)[-1] for column in columns.split(", ")]


@every_view
def test_the_batch_side_is_pinned_to_a_snapshot(view: View) -> None:
    assert batch_side(view, PIN).endswith(f" FROM lake.batch.{view.name} FOR VERSION AS OF 8412345678")


@every_view
def test_the_speed_side_is_pinned_to_a_generation_and_begins_at_the_epoch(view: View) -> None:
    side = speed_side(view, PIN)
    assert f" FROM lake.speed.{view.pipeline} s WHERE " in side
    conditions = side.split(" WHERE ")[1].split(" AND ")
    assert conditions == [f"s.view = '{view.name}'", "s.generation = 3", "s.epoch >= 17"]


@every_view
def test_a_cut_ends_the_speed_side_and_leaves_the_batch_side_as_it_is(view: View) -> None:
    cut = replace(PIN, until=20)
    assert speed_side(view, cut) == speed_side(view, PIN) + " AND s.epoch < 20"
    assert batch_side(view, cut) == batch_side(view, PIN)
    assert speed_side(view, replace(PIN, until=0)).endswith(" AND s.epoch < 0")


@every_view
def test_both_sides_have_the_partial_states_in_the_same_order(view: View) -> None:
    names = [field.name for field in view.fields]
    assert aliases(batch_side(view, PIN)) == names
    assert aliases(speed_side(view, PIN)) == names


@every_view
@both
def test_tables_of_the_lake_are_read_only_as_they_are_pinned(view: View, make: Make) -> None:
    sql = make(view, PIN)
    assert sql.count(batch_side(view, PIN)) == sql.count(speed_side(view, PIN)) > 0
    assert re.search(r"\blake\.", sql.replace(batch_side(view, PIN), "").replace(speed_side(view, PIN), "")) is None
    assert re.search(r"UNION(?! ALL)", sql) is None


@every_view
@both
def test_before_the_first_batch_there_is_no_batch_side(view: View, make: Make) -> None:
    sql = make(view, replace(PIN, snapshot=None))
    assert speed_side(view, PIN) in sql
    assert [word for word in ("lake.batch", "UNION", "None") if word in sql] == []


@every_view
def test_a_snapshot_numbered_zero_is_a_snapshot(view: View) -> None:
    assert "FOR VERSION AS OF 0" in states(view, replace(PIN, snapshot=0))


@every_view
def test_what_people_read_is_over_the_states_without_groups_that_are_gone(view: View) -> None:
    sql = merged(view, PIN)
    assert states(view, PIN) in sql
    assert sql.endswith(f"\nWHERE {view.present}")
    assert all(f"{read.expression} AS {read.name}" in sql for read in view.reads)


def run(sql: str, tables: dict[str, str]) -> list[tuple[object, ...]]:
    """Run SQL of the serving layer, given the rows that each side selects."""
    for side, values in tables.items():
        sql = sql.replace(side, values)
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


SPEND = Aggregate(
    name="spend",
    comment="",
    entity="order",
    keys=(Key(Field("country", "string", ""), "country"),),
    measures=(Count("orders", ""), Sum("total", "total", "")),
)
STATUS = Latest(name="status", comment="", entity="order", columns=(Field("status", "string", ""),))


def rows(view: View, *values: str) -> str:
    """A SELECT of these partial states of a view."""
    names = ", ".join(field.name for field in view.fields)
    return f"SELECT * FROM (VALUES {', '.join(values)}) AS t({names})"


def test_groups_add_up_across_the_boundary_and_those_that_cancel_out_disappear() -> None:
    sides = {
        batch_side(SPEND, PIN): rows(SPEND, "('DE', 2, 30.5)", "('FR', 1, 7.0)", "(NULL, 1, 1.0)"),
        speed_side(SPEND, PIN): rows(
            SPEND, "('DE', 1, 9.0)", "('DE', 1, 0.5)", "('FR', -1, -7.0)", "('ES', 1, 4.0)", "(NULL, 1, 2.0)"
        ),
    }
    whole = {("DE", 4, 40), ("ES", 1, 4), (None, 2, 3)}
    assert sorted(run(merged(SPEND, PIN), sides), key=str) == sorted(whole, key=str)
    assert sorted(run(states(SPEND, PIN), sides), key=str) == sorted(whole | {("FR", 0, 0)}, key=str)


def test_the_newest_version_wins_across_the_boundary_and_a_deleted_one_is_absent() -> None:
    """Of another guest's entity of the same ref, nothing is known: offsets are compared within a partition only."""
    sides = {
        batch_side(STATUS, PIN): rows(
            STATUS, "('g', 'a', 1, false, 'PLACED')", "('g', 'b', 2, false, 'PLACED')", "('g', 'c', 9, false, 'PAID')"
        ),
        speed_side(STATUS, PIN): rows(
            STATUS,
            "('g', 'a', 5, false, 'PAID')",
            "('g', 'a', 7, false, NULL)",
            "('g', 'b', 6, true, 'PLACED')",
            "('h', 'c', 3, false, 'PLACED')",
        ),
    }
    kept = [("g", "a", None), ("g", "c", "PAID"), ("h", "c", "PLACED")]
    assert sorted(run(merged(STATUS, PIN), sides)) == kept
    assert sorted(run(merged(STATUS, replace(PIN, snapshot=None)), sides)) == [kept[0], kept[2]]
    assert len(run(states(STATUS, PIN), sides)) == 4


@pytest.mark.parametrize("sql", [EPOCHS.format(pipeline="joins"), bad_records(["joins"], [])])
def test_a_view_over_the_journal_reads_its_own_pipeline(sql: str) -> None:
    assert "FROM lake.speed.joins s" in sql
    assert "{" not in sql


def test_a_bad_record_is_shown_once_whoever_has_it() -> None:
    text = bad_records(["main", "joins"], ["order"])
    assert "FROM lake.archive.\"order\" WHERE kind = 'bad'" in text
    assert text.count("lake.speed.") == 2
    assert text.count("GROUP BY topic, kafka_partition, kafka_offset") == 1
    assert text.index("GROUP BY") < text.index("LEFT JOIN ops.public.dead_letter_replays")


@every_view
def test_a_view_with_a_guest_in_each_row_hides_those_who_are_being_erased(view: View) -> None:
    of_guests = "guest_ref" in [key.field.name for key in view.contribution.keys]
    for make in (states, merged):
        assert ("NOT IN (SELECT ref FROM ops.public.erasing)" in make(view, PIN, True)) is of_guests
        assert "erasing" not in make(view, PIN)


def test_hiding_takes_a_guest_out_of_states_and_what_is_read() -> None:
    view = Aggregate(
        name="spend", comment="", entity="order", keys=(Key(Field("guest_ref", "string", ""), "guest_ref"),),
        measures=(Count("orders", ""),),
    )  # fmt: skip
    connection = duckdb.connect()
    connection.execute("ATTACH ':memory:' AS ops; CREATE SCHEMA ops.public; CREATE TABLE ops.public.erasing (ref text)")
    connection.execute("CREATE TABLE there AS SELECT * FROM (VALUES ('g1', 2), ('g2', 3)) AS t(guest_ref, rows)")
    for hidden, left in (([], ["g1", "g2"]), (["g1"], ["g2"])):
        connection.executemany("INSERT INTO ops.public.erasing VALUES (?)", [[ref] for ref in hidden] or [["nobody"]])
        text = re.sub(r"FROM \(\n  SELECT guest_ref, rows FROM lake\.batch.*?\n\)\n", "FROM there\n",
                      merged(view, PIN, True), flags=re.DOTALL)  # fmt: skip
        assert sorted(row[0] for row in connection.execute(text).fetchall()) == left


def test_the_boundary_counts_only_what_was_published_to_the_end() -> None:
    assert "FROM ops.public.served" in boundary(all_views())
    assert "p.state = 'finished' AND v.withdrawn_at IS NULL" in ops.SCHEMA
    assert "j.epoch >= p.epoch" in boundary(all_views())
    assert "j.generation = p.generation" in boundary(all_views())


def test_every_column_that_people_read_has_its_comment_in_sql() -> None:
    connection = duckdb.connect()
    rows = connection.execute(columns([*all_views(), *derived_views()])).fetchall()
    assert len({row[:2] for row in rows}) == len(rows)
    assert ("revenue", "orders", "orders that are not cancelled") in rows
    assert ("alerts", "pattern", "the view that found it") in rows
    assert all(row[2] for row in rows)
