"""What a build may be asked for."""

from datetime import UTC, datetime

import pytest

from batch.plan import RESERVED, Plan, parse_since
from runtime.errors import TerminalError

pytestmark = pytest.mark.unit


def test_a_position_is_a_vector_or_a_time() -> None:
    assert parse_since(None) is None
    assert parse_since("") is None
    assert parse_since('{"changelog.order": {"0": 12}}') == {"changelog.order": {0: 12}}
    assert parse_since("2026-05-01T00:00:00Z") == datetime(2026, 5, 1, tzinfo=UTC)
    assert parse_since("2026-05-01") == datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "{", '{"changelog.order": 12}', '{"changelog.order": {"x": 1}}'])
def test_a_position_that_is_neither_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TerminalError, match=r'"changelog.order": \{"0": 12\}.*2026-05-01'):
        parse_since(text)


@pytest.mark.parametrize("location", [*RESERVED, "", "Upper", "a b", "x; DROP", "a.b", "1st", "é"])
def test_a_location_is_a_plain_name_of_its_own(location: str) -> None:
    with pytest.raises(TerminalError, match="location"):
        Plan(location=location)


def test_what_begins_in_the_middle_of_the_log_is_never_served() -> None:
    with pytest.raises(TerminalError, match="--location"):
        Plan(since={"changelog.order": {0: 12}})
    assert Plan(since={"changelog.order": {0: 12}}, location="elsewhere").location == "elsewhere"


@pytest.mark.parametrize("run_id", ["a-b", "a b", "", "'", "x" * 101])
def test_the_name_of_a_run_fits_a_branch(run_id: str) -> None:
    with pytest.raises(TerminalError, match="run id"):
        Plan(run_id=run_id)
