"""Which mended letters go back: each once, none on top of what is newer."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from changelog.dead_letters import Mended
from changelog.envelope import encode, envelope
from changelog.records import Identity, Place
from serving.letter_notes import Note
from serving.letter_replay import Lines, Moment, newest
from serving.whole_log import Change
from tests.unit.changelog.samples import SAMPLES

pytestmark = pytest.mark.unit

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def line(offset: int, identifier: str = "i", **more: Any) -> bytes:
    made = json.loads(encode(envelope("shop", f"{identifier}-{offset}", SAMPLES["order"])))
    return json.dumps({"topic": "changelog.order", "partition": 0, "offset": offset, "envelope": made, **more}).encode()


def moment(offset: int, seconds: int = 0, partition: int = 0) -> Moment:
    return Moment(Place("changelog.order", partition, offset), AT + timedelta(seconds=seconds))


def change(offset: int, identifier: str, topic: str = "changelog.order") -> Change:
    place = Place(topic, 0, offset)
    return Change(place, AT + timedelta(seconds=offset), Identity(topic, b"g-1", "shop", identifier), "o-1")


def test_a_letter_is_taken_from_one_line() -> None:
    lines = Lines(enumerate([line(1), line(2), line(1), b"{", line(4, envelope=5)], 1))
    assert sorted(lines.by_place) == [Place("changelog.order", 0, offset) for offset in (1, 2, 4)]
    assert [one.identity.identifier for one in lines.mended()] == ["i-1", "i-2"]
    assert all(isinstance(one, Mended) for one in lines.mended())
    assert (lines.refused, [number for number, _ in lines.said]) == (2, [3, 4]), "one is still bad and has its place"
    assert lines.said[0][1] == "refused: line 1 is of the same dead letter, changelog.order/0/1"


def test_moments_are_told_by_offset_within_a_partition_and_by_time_between_two() -> None:
    assert moment(2, seconds=0).is_after(moment(1, seconds=5))
    assert not moment(1).is_after(moment(1))
    assert moment(1, seconds=5, partition=1).is_after(moment(9))
    assert not moment(9, partition=1).is_after(moment(1)), "in the same millisecond nobody knows"


def test_the_newest_version_is_no_copy_and_a_mended_one_belongs_where_its_letter_was() -> None:
    changes = [change(1, "a"), change(5, "b"), change(7, "a"), change(9, "c"), change(11, "e", "changelog.event")]
    places = {one.identity: one.place for one in reversed(changes)}
    entity = ("changelog.order", b"g-1", "o-1")
    found = newest(changes, places, [])
    assert found.keys() == {entity}, "events have no versions"
    assert found[entity][1].identity.identifier == "c"
    letter = Note(Place("changelog.order", 0, 3), AT, changes[3].identity, "o-1", changes[3].place)
    moved = newest(changes, places, [letter])
    assert (moved[entity][0].place.offset, moved[entity][1].identity.identifier) == (5, "b")
