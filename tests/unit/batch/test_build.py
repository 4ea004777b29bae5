"""A run that was retired while it folded does not come back to life."""

from typing import Any, cast

import pytest

from batch import erase
from batch.build import Run, _note_built

pytestmark = pytest.mark.unit


class Runs:
    """The table ``runs``, with one row."""

    def __init__(self, generation: int, state: str) -> None:
        self.generation, self.state, self.rowcount = generation, state, 0

    def execute(self, text: str, values: tuple[Any, ...]) -> "Runs":
        assert "generation = %s AND state IN ('building', 'built')" in text
        self.rowcount = int(values[3] == self.generation and self.state in ("building", "built"))
        return self


@pytest.mark.parametrize(
    ("generation", "state", "noted"),
    [(1, "building", True), (1, "built", True), (1, "retired", False), (2, "building", False)],
)
def test_only_a_run_that_is_still_meant_is_built(generation: int, state: str, noted: bool) -> None:
    run = Run("r", "full", "main", 1, 5, {})
    assert _note_built(cast(Any, Runs(generation, state)), run) is noted


@pytest.mark.parametrize(
    ("refs", "found"),
    [
        ({"main": 1, "empty": 1}, False),
        ({"main": 1, "empty": 1, "run_r_2": 2}, True),
        ({"main": 1, "empty": 1, "run_r_3": 3}, False),
        ({"main": 1, "empty": 1, "run_r_3": 3, "branch_q_12345678": 2}, True),
    ],
)
def test_a_table_beside_is_judged_by_its_own_snapshots(
    monkeypatch: pytest.MonkeyPatch, refs: dict[str, int], found: bool
) -> None:
    rows = [{"name": name, "snapshot_id": snapshot} for name, snapshot in refs.items()]
    monkeypatch.setattr(erase, "refs_of", lambda _spark, _table: rows)
    monkeypatch.setattr(erase, "taken_in", lambda _spark, _table, snapshot: {2: 1, 3: 2}.get(snapshot, 0))
    assert erase.has_before(cast(Any, None), "t", 2) is found
