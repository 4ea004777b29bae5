"""Rows of a snapshot: what was streamed wins, whenever it comes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.sources.cdc.rows import PAGE, Rows

pytestmark = pytest.mark.unit


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    made = Rows(tmp_path / "rows")
    yield made
    made.close()
    assert not (tmp_path / "rows").exists()


def test_what_was_read_is_there_until_the_stream_says_otherwise(rows: Rows) -> None:
    rows.read("t", [("a", 0, {"n": 1}), ("b", 0, {"n": 1})])
    rows.stream("t", "a", 0, {"n": 2})
    rows.stream("t", "b", 0, None)
    rows.read("t", [("a", 0, {"n": 1}), ("b", 0, {"n": 1}), ("c", 0, {"n": 1})])
    assert dict(rows.all("t")) == {"a": {"n": 2}, "c": {"n": 1}}
    assert [rows.has("t", ref) for ref in "abcd"] == [True, False, True, False]


def test_what_is_read_again_is_newer_than_what_was_read(rows: Rows) -> None:
    rows.read("t", [("a", 0, {"n": 1})])
    rows.read("t", [("a", 0, {"n": 2})])
    assert dict(rows.all("t")) == {"a": {"n": 2}}


def test_parts_are_found_by_their_entity_and_tables_are_apart(rows: Rows) -> None:
    rows.read("items", [("o1", line, {"line": line}) for line in (3, 1, -2, 1 << 40)])
    rows.read("items", [("o2", 1, {"line": 9})])
    rows.read("others", [("o1", 1, {})])
    assert sorted(row["line"] for row in rows.of("items", "o1")) == [-2, 1, 3, 1 << 40]
    assert rows.of("items", "o3") == []
    rows.truncate("items")
    assert list(rows.all("items")) == []
    assert rows.of("others", "o1") == [{}]


def test_there_may_be_more_than_a_page_and_changes_while_they_are_gone_through(rows: Rows) -> None:
    number = PAGE * 2 + 1
    rows.read("t", [(f"r{n}", 0, {"n": n}) for n in range(number)])
    seen = []
    for ref, _ in rows.all("t"):
        seen.append(ref)
        rows.stream("t", ref, 0, {"n": -1})
    assert sorted(seen) == sorted(f"r{n}" for n in range(number))


def test_a_directory_is_wiped_when_it_begins(tmp_path: Path) -> None:
    first = Rows(tmp_path / "rows")
    first.read("t", [("a", 0, {})])
    second = Rows(tmp_path / "rows")
    assert list(second.all("t")) == []
    first.close()
