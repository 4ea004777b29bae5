"""What the check of the archive refuses, and what it says then."""

from collections.abc import Sequence
from typing import Any

import duckdb
import pytest

from batch.backlog import least
from batch.quality import Share, check, coverage, too_bad
from changelog.positions import Vector
from runtime.errors import QualityError, TerminalError
from runtime.settings import ENTITIES, topic_of

pytestmark = pytest.mark.unit

Row = tuple[int, int, int, str]
"""kafka_partition, kafka_offset, last_offset, kind."""


def rows(*offsets: int, partition: int = 0, kind: str = "change") -> list[Row]:
    return [(partition, offset, offset, kind) for offset in offsets]


class Archive:
    """The archive tables in DuckDB, which understands the same SQL."""

    def __init__(self, **tables: list[Row]) -> None:
        self._database = duckdb.connect()
        self._database.execute("ATTACH ':memory:' AS lake")
        self._database.execute("CREATE SCHEMA lake.archive")
        for entity in ENTITIES:
            self._database.execute(
                f'CREATE TABLE lake.archive."{entity}" '
                "(kafka_partition int, kafka_offset bigint, last_offset bigint, kind text)"
            )
            for row in tables.get(entity, []):
                self._database.execute(f'INSERT INTO lake.archive."{entity}" VALUES (?, ?, ?, ?)', row)

    def query(self, sql: str) -> Sequence[Sequence[Any]]:
        return self._database.execute(sql).fetchall()


def ends(**of_entity: int) -> Vector:
    return {topic_of(entity): {0: of_entity.get(entity, 0), 1: 1000} for entity in ENTITIES}


def verdict(archive: Archive, log: Vector, since: Vector | None = None, share: float = 0.05, least: int = 3) -> str:
    """The message of the refusal, or nothing."""
    try:
        check(archive.query, lambda: log, since or {}, share, least)
    except QualityError as error:
        return str(error)
    return ""


def test_an_archive_without_faults_passes_and_says_what_is_new() -> None:
    archive = Archive(order=[*rows(0, 1, 2), (0, 3, 7, "empty"), *rows(8), *rows(0, 1, partition=1)], event=rows(0))
    since: Vector = {topic_of("order"): {0: 2, 1: 1}}
    found = check(archive.query, lambda: ends(order=9, event=1), since, 0.05, 3)
    assert found == {
        'lake.archive."guest"': 0, 'lake.archive."session"': 0, 'lake.archive."order"': 3, 'lake.archive."event"': 1
    }  # fmt: skip


def test_an_empty_archive_passes() -> None:
    assert verdict(Archive(), ends()) == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (rows(0, 1, 4), "stand for 3 offsets and end at 5, first fault: 2 to 3 are missing"),
        (rows(2, 3), "stand for 2 offsets and end at 4, first fault: 0 to 1 are missing"),
        (rows(0, 1, 1, 2), "stand for 4 offsets and end at 3, first fault: 1 is there twice"),
        ([*rows(0, 1), (0, 1, 3, "empty")], "stand for 5 offsets and end at 4, first fault: 1 is there twice"),
        (rows(0, 1, 1, 3), "stand for 4 offsets and end at 4, first fault: 1 is there twice"),
        (rows(0, 2, 2, 3), "stand for 4 offsets and end at 4, first fault: 1 to 1 are missing"),
    ],
    ids=["hole", "hole at the beginning", "double", "overlap", "double before a hole", "hole before a double"],
)
def test_a_hole_or_a_double_is_found_and_named(found: list[Row], said: str) -> None:
    message = verdict(Archive(order=[*found, *rows(0, partition=1)]), ends(order=10))
    assert f'lake.archive."order", partition 0: its rows {said}' in message
    assert "partition 1" not in message
    assert "anabranch drop archive.order" in message


def test_an_archive_that_is_ahead_of_its_log_is_refused() -> None:
    archive = Archive(guest=rows(0, 1, 2))
    assert verdict(archive, ends(guest=3)) == ""
    message = verdict(archive, ends(guest=2))
    assert 'lake.archive."guest", partition 0: archived up to 3, but changelog.guest ends at 2' in message
    assert "archived up to 3, but changelog.guest ends at 0" in verdict(archive, {})


def test_the_log_is_asked_after_the_archive() -> None:
    """The archive may grow meanwhile; asked the other way round, that would look like a log that has lost records."""
    asked = []
    archive = Archive()

    def query(sql: str) -> Sequence[Sequence[Any]]:
        asked.append("archive" if "max(last_offset)" in sql else "share")
        return archive.query(sql)

    def log() -> Vector:
        asked.append("log")
        return ends()

    check(query, log, {}, 0.05, 3)
    assert asked.index("log") > max(place for place, what in enumerate(asked) if what == "archive")


def test_too_many_bad_records_since_the_last_publication_are_refused() -> None:
    archive = Archive(event=[*rows(*range(90)), *rows(*range(90, 100), kind="bad")])
    log = ends(event=100)
    assert "10 of the 100 records since the last publication are bad" in verdict(archive, log)
    assert verdict(archive, log, share=0.1) == "", "the limit itself is allowed"
    assert verdict(archive, log, least=11) == "", "too few to alarm"
    assert verdict(archive, log, since={topic_of("event"): {0: 100}}) == "", "published already"
    assert "10 of the 10 records" in verdict(archive, log, since={topic_of("event"): {0: 90}})


@pytest.mark.parametrize(("bad", "records", "alarm"), [(1, 3, False), (20, 399, True), (20, 400, False), (0, 0, False)])
def test_a_share_alarms_only_with_a_number_behind_it(bad: int, records: int, alarm: bool) -> None:
    assert bool(too_bad([Share("t", bad, records)], 0.05, 20)) == alarm


def test_empty_ranges_are_no_records() -> None:
    archive = Archive(event=[*rows(0, 1, 2, kind="bad"), (0, 3, 9999, "empty")])
    assert "3 of the 3 records" in verdict(archive, ends(event=10_000))


def test_all_faults_are_said_at_once_and_trying_again_does_not_help() -> None:
    archive = Archive(order=rows(0, 2), guest=rows(0, 1), event=rows(0, 1, 2, 3, kind="bad"))
    message = verdict(archive, ends(order=3, guest=1, event=4))
    assert [part in message for part in ("1 to 1 are missing", "archived up to 2", "4 of the 4")] == [True] * 3
    assert message.startswith("nothing is published: ")
    assert issubclass(QualityError, TerminalError)


def test_long_logs_do_not_overflow() -> None:
    end = 4_000_000_000
    (found,) = coverage(Archive(event=[(0, 0, end - 1, "empty")]).query, "event")
    assert found.is_whole


def test_what_all_views_have_is_the_least_of_their_positions() -> None:
    assert least([]) == {}
    assert least([{"a": {0: 5, 1: 2}, "b": {0: 1}}, {"a": {0: 3, 1: 4}}]) == {"a": {0: 3, 1: 2}, "b": {}}
    assert least([{"a": {0: 5, 1: 2}}, {"a": {0: 9}}]) == {"a": {0: 5}}
