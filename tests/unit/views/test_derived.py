"""Views over views: which views they read, and that their text carries the text of those at their pins."""

import pytest

from runtime.errors import DefinitionError
from serving.sql import Pin, derived, merged, states
from views.algebra import Field
from views.derived import Derived
from views.registry import all_views, derived_views, view_named

pytestmark = pytest.mark.unit

PIN, OTHER = Pin(snapshot=5, generation=1, epoch=7), Pin(snapshot=6, generation=1, epoch=9)

every_derived = pytest.mark.parametrize("view", derived_views(), ids=lambda view: view.name)


def made(sql: str) -> Derived:
    return Derived(name="d", comment="c", columns=(Field("n", "bigint", "n"),), sql=sql)


def test_it_reads_merged_views_and_states_each_at_its_own_pin() -> None:
    view = made("SELECT 1 FROM {revenue} r, {traffic_states} t, {revenue} again")
    assert view.over == ("revenue", "traffic")
    revenue, traffic = view_named("revenue"), view_named("traffic")
    text = derived(view, {"revenue": (revenue, PIN), "traffic": (traffic, OTHER)})
    assert text == (
        f"SELECT 1 FROM (\n{merged(revenue, PIN)}\n) r, (\n{states(traffic, OTHER)}\n) t, (\n{merged(revenue, PIN)}\n) "
        "again"
    )


def test_what_it_reads_has_to_be_there() -> None:
    with pytest.raises(DefinitionError, match="view d reads 'nothing', which is no view"):
        derived(made("SELECT 1 FROM {nothing}"), {})


@every_derived
def test_every_view_over_views_is_sound(view: Derived) -> None:
    names = {one.name for one in all_views()}
    assert view.name not in names
    assert view.over
    assert names.issuperset(view.over)
    assert view.comment
    assert all(column.comment for column in view.columns)
    assert len({column.name for column in view.columns}) == len(view.columns)
    text = derived(view, {name: (view_named(name), PIN) for name in view.over})
    assert "{" not in text
