"""What is served under a name that nobody defines any more is taken back."""

import pytest

from serving.publication import undefined
from views.registry import all_views, derived_views

pytestmark = pytest.mark.unit


def test_names_that_no_definition_has_are_told_and_no_others() -> None:
    defined = [view.name for view in all_views()] + [derived.name for derived in derived_views()]
    states = [f"{view.name}_states" for view in all_views()]
    assert undefined([*defined, *states]) == []
    assert undefined([*defined, *states, "revenue_v0", "revenue_v0_states"]) == ["revenue_v0", "revenue_v0_states"]
