"""When a snapshot is overdue."""

from typing import Any

import pytest

from changelog.sources.cdc.mapper import Mark
from changelog.sources.cdc.service import is_awaited

pytestmark = pytest.mark.unit

RUNS = {"connector": "RUNNING", "task": "RUNNING", "error": None}


@pytest.mark.parametrize(
    ("mark", "connector", "awaited"),
    [
        (Mark("life", 3), RUNS, True),
        (Mark("life", 3, since=4, started=5), RUNS, True),
        (Mark("life", 3, whole=True, since=4, started=5), RUNS, True),
        (Mark("life", 3, whole=True), RUNS, False),
        (Mark("life", 3), {**RUNS, "task": "FAILED"}, False),
        (Mark("life", 3), {"connector": "UNREACHABLE", "task": "UNKNOWN", "error": "x"}, False),
        (Mark("life", 3), None, False),
        (None, RUNS, False),
    ],
)
def test_a_snapshot_is_awaited_while_one_is_needed_and_the_connector_could(
    mark: Mark | None, connector: dict[str, Any] | None, awaited: bool
) -> None:
    assert is_awaited(mark, connector) is awaited
