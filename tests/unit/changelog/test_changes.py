"""Which records are changes: for plain consumers as for the layers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from changelog.changes import Changes
from changelog.envelope import encode, envelope
from changelog.reader import Entry
from runtime.settings import Settings
from tests.unit.changelog.samples import KEY, SAMPLES

pytestmark = pytest.mark.unit

TOPIC = "changelog.order"
HOUR_MS = 3_600_000


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[Changes]:
    made = Changes(Settings(), tmp_path)
    made.begin(TOPIC, 0, 0)
    yield made
    made.close()


def entry(offset: int, identifier: str, time: int = 0, value: bytes | None = None) -> Entry:
    value = encode(envelope("shop", identifier, SAMPLES["order"])) if value is None else value
    return Entry(TOPIC, 0, offset, 1_700_000_000_000 + time, KEY, value, {})


def test_bad_records_tombstones_and_copies_are_left_out(changes: Changes) -> None:
    entries = [
        entry(0, "a"),
        entry(1, "a"),
        entry(2, "", value=b"{"),
        entry(3, "", value=b""),
        entry(4, "b"),
        entry(5, "", value=encode(envelope("shop", "c", SAMPLES["order"] | {"status": "LOST"}))),
        entry(6, "a"),
    ]
    found = changes.of(entries)
    assert [(change.entry.offset, change.service, change.identifier) for change in found] == [
        (0, "shop", "a"),
        (4, "shop", "b"),
    ]
    assert changes.of(entries) == found, "asked again, it answers the same"
    assert changes.of([]) == []


def test_a_copy_is_known_within_the_horizon_and_across_calls(changes: Changes) -> None:
    def offsets(*entries: Entry) -> list[int]:
        return [change.entry.offset for change in changes.of(entries)]

    assert offsets(entry(0, "a")) == [0]
    assert offsets(entry(1, "a", HOUR_MS)) == []
    assert offsets(entry(2, "a", 2 * HOUR_MS)) == [], "the copy before it is as old as the horizon"
    assert offsets(entry(3, "a", 3 * HOUR_MS + 1)) == [3]


def test_what_was_known_is_known_after_a_restart(changes: Changes, tmp_path: Path) -> None:
    assert len(changes.of([entry(0, "a")])) == 1
    changes.close()
    again = Changes(Settings(), tmp_path)
    again.begin(TOPIC, 0, 1)
    assert again.of([entry(1, "a")]) == []
    again.close()


def test_partitions_do_not_know_each_other(changes: Changes) -> None:
    changes.begin(TOPIC, 1, 0)
    assert len(changes.of([entry(0, "a"), entry(0, "a")._replace(partition=1)])) == 2
