"""What a definition may ask for, and what follows from it: keys, states, and the SQL that adds them."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import views
from runtime.errors import DefinitionError, TerminalError
from runtime.settings import ENTITIES
from runtime.version import ROOT
from views.aggregate import IMMUTABLE, ROWS, Aggregate, Average, Count, Measure, Quantiles, Sum, TopK
from views.algebra import REDUCERS, Field, Key, Read, State, View, deferring, written_by
from views.latest import Latest
from views.matching import Matches, Side, Trigger
from views.registry import all_views, view_named, view_names, views_of

pytestmark = pytest.mark.unit

every_view = pytest.mark.parametrize("view", all_views(), ids=lambda view: view.name)

COUNTRY = Key(Field("country", "string", "country"), "country")
TOTAL = Sum("total", "total", "sum of totals")


@dataclass(frozen=True)
class Largest:
    """A measure that cannot take back: who knows what the largest was before the largest came?"""

    name: str = "largest"
    retractable = False

    @property
    def states(self) -> tuple[State, ...]:
        return (State(Field(self.name, "bigint", "largest"), "total", "max"),)

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read(self.name, self.name, "largest"),)


def aggregate(entity: str = "order", *measures: Measure, where: str = "true") -> Aggregate:
    return Aggregate(name="a", comment="c", entity=entity, keys=(COUNTRY,), measures=measures, where=where)


@pytest.mark.parametrize("entity", sorted(set(ENTITIES) - {"event"}))
def test_a_measure_that_cannot_take_back_is_refused_where_entities_change(entity: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        aggregate(entity, Count("n", "c"), Largest())
    said = str(refused.value)
    assert said == (
        f"view a: Largest cannot take a value back, and '{entity}' is updated and deleted; it is exact only on event"
    )
    assert isinstance(refused.value, TerminalError)


def test_a_measure_that_cannot_take_back_is_allowed_on_what_never_changes() -> None:
    assert frozenset({"event"}) == IMMUTABLE
    assert [read.name for read in aggregate("event", Largest()).reads] == ["country", "largest"]


@pytest.mark.parametrize("entity", ENTITIES)
def test_counts_sums_and_averages_are_allowed_on_every_entity(entity: str) -> None:
    view = aggregate(entity, Count("n", "c"), TOTAL, Average("mean", TOTAL, "c"))
    assert [read.name for read in view.reads] == ["country", "n", "total", "mean"]


def test_states_that_measures_share_are_kept_once() -> None:
    view = aggregate("order", Count("n", "c"), Count("m", "c"), TOTAL, Average("mean", TOTAL, "c"))
    assert [field.name for field in view.fields] == ["country", "rows", "total"]


def test_an_aggregate_folds_weighted_rows_of_its_entity_only() -> None:
    contribution = aggregate("order", TOTAL, where="a OR b").contribution
    assert contribution.condition == "topic = 'changelog.order' AND weight <> 0 AND (a OR b)"
    assert contribution.states[0] == ROWS
    assert (ROWS.expression, ROWS.reducer) == ("weight", "sum")


def test_latest_folds_the_newest_version_and_keeps_its_row_whole() -> None:
    view = Latest(name="l", comment="c", entity="order", columns=(Field("status", "string", "s"),))
    assert view.contribution.condition == "topic = 'changelog.order' AND newest"
    assert [key.field.name for key in view.contribution.keys] == ["guest_ref", "ref"]
    assert {state.field.name: state.reducer for state in view.contribution.states} == {
        "kafka_offset": "max",
        "deleted": "newest",
        "status": "newest",
    }
    assert view.present == "NOT deleted"


@pytest.mark.parametrize(
    ("entity", "guest", "reads"),
    [("guest", "ref", ["ref", "email"]), ("session", "guest_ref", ["guest_ref", "ref", "email"])],
)
def test_a_guest_is_its_own_guest(entity: str, guest: str, reads: list[str]) -> None:
    view = Latest(name="l", comment="c", entity=entity, columns=(Field("email", "string", "e"),))
    assert [key.expression for key in view.contribution.keys] == [guest, "ref"]
    assert [read.name for read in view.reads] == reads


def test_parts_are_added_by_the_reducers_of_the_states() -> None:
    sql = aggregate("event", TOTAL, Largest()).states_sql(["SELECT 1", "SELECT 2"])
    assert " ".join(sql.split()) == (
        "SELECT country, sum(rows) AS rows, sum(total) AS total, max(largest) AS largest "
        "FROM ( SELECT 1 UNION ALL SELECT 2 ) GROUP BY country"
    )


@every_view
def test_every_view_is_sound(view: View) -> None:
    contribution = view.contribution
    names = [field.name for field in view.fields]
    assert contribution.name == view.name
    assert view.entity in ENTITIES
    assert view.comment
    assert contribution.keys
    assert len(set(names)) == len(names)
    assert {state.reducer for state in contribution.states} <= REDUCERS.keys()
    if isinstance(view, Matches):
        assert contribution.condition == f"matched = '{view.name}'"
        assert view.entity in {side.entity for side in view.sides.values()}
        assert view.triggers
    else:
        assert contribution.condition.startswith(f"topic = 'changelog.{view.entity}' AND ")
    assert all(
        field.name.isidentifier() and field.name == field.name.lower() and field.comment for field in view.fields
    )


@every_view
def test_money_is_never_a_float(view: View) -> None:
    assert [field for field in view.fields if "float" in field.type] == []
    assert [field for field in view.fields if "double" in field.type] == []


@every_view
def test_every_column_that_people_read_is_explained_once(view: View) -> None:
    names = [read.name for read in view.reads]
    assert len(set(names)) == len(names)
    assert all(read.comment for read in view.reads)


@pytest.fixture
def more_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose modules belong to the package ``views`` as well."""
    monkeypatch.setattr(views, "__path__", [*views.__path__, str(tmp_path)])
    before = set(sys.modules)
    all_views.cache_clear()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
        if hasattr(views, name.rpartition(".")[2]):
            delattr(views, name.rpartition(".")[2])
    all_views.cache_clear()


def define(directory: Path, module: str, name: str, pipeline: str = "main") -> None:
    (directory / f"{module}.py").write_text(
        "from views.aggregate import Aggregate\n"
        f"VIEW = Aggregate(name={name!r}, comment='', entity='event', keys=(), measures=(), pipeline={pipeline!r})\n"
    )


def test_a_module_that_defines_a_view_is_all_that_a_view_needs(more_views: Path) -> None:
    define(more_views, "added", "added", pipeline="joins")
    assert view_named("added") in all_views()
    assert "added" in {view.name for view in views_of("joins")}
    assert "added" not in {view.name for view in views_of("main")}
    assert [view.name for view in all_views()] == sorted(view.name for view in all_views())


def test_a_view_that_is_not_named_like_its_module_is_refused(more_views: Path) -> None:
    define(more_views, "revenue_again", "revenue")
    with pytest.raises(
        DefinitionError, match=r"views/revenue_again.py has to define VIEW, a view named 'revenue_again'"
    ):
        all_views()


def test_the_names_are_known_without_importing_a_view(more_views: Path) -> None:
    define(more_views, "added", "added")
    assert view_names() == tuple(view.name for view in all_views())
    command = (
        "import sys; from views.registry import view_names; assert view_names(); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", command], check=True, cwd=ROOT)


def test_a_view_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(DefinitionError, match=r"there is no view 'revenues'; there are .*\brevenue\b"):
        view_named("revenues")


def test_a_pattern_that_waits_longer_than_it_reaches_or_has_no_side_is_refused() -> None:
    def made(**changed: object) -> Matches:
        settings: dict[str, object] = {
            "name": "m", "comment": "c", "entity": "event", "keys": (COUNTRY,), "measures": (), "match": (),
            "sides": {"a": Side("event")}, "triggers": {"a": Trigger(lambda seen, history: iter(()), 60)},
            "reach_seconds": 60,
        }  # fmt: skip
        return Matches(**(settings | changed))  # type: ignore[arg-type]

    assert made().topics == ("changelog.event",)
    assert made().kept_seconds == 120
    with pytest.raises(DefinitionError, match="view m: waits 60 s, and reaches 59 s"):
        made(reach_seconds=59)
    with pytest.raises(DefinitionError, match=r"view m: a trigger for \['a'\], and sides \['b'\]"):
        made(sides={"b": Side("event")})


def test_two_measures_that_need_a_key_more_are_refused() -> None:
    with pytest.raises(DefinitionError, match="view a: q and t each need a key more"):
        aggregate("event", Quantiles("q", "quantity", {"p": 0.5}, "c"), TopK("t", "sku", 3, "c"))


def test_what_a_batch_source_wrote_is_left_out_of_a_deferring_fold() -> None:
    contribution = aggregate("order", TOTAL).contribution
    assert deferring(contribution, []) is contribution
    found = deferring(contribution, ["bulk", "o'hare\\"]).condition
    assert (
        found
        == f"({contribution.condition}) AND (false OR NOT coalesce(service_name IN ('bulk', 'o\\'hare\\\\'), false))"
    )
    assert deferring(contribution, ["bulk"], "kafka_offset < 7").condition.endswith(
        "AND (kafka_offset < 7 OR NOT coalesce(service_name IN ('bulk'), false))"
    )
    assert written_by([]) == "false"
