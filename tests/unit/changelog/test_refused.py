"""Nothing of an erased guest goes in, by any way; and what is of others does."""

import json

import pytest

from changelog.commands.decide import answer
from changelog.derived import burial, source_of
from changelog.producer import Record
from changelog.reader import Entry
from changelog.sources.cdc.mapper import BAD_TOPIC
from changelog.sources.cdc.service import admit
from changelog.sources.checked import IS_ERASED, checked
from changelog.sources.load import records
from tests.unit.changelog.commands.state import Memory, guest, place
from tests.unit.changelog.samples import KEY, SAMPLES, change
from tests.unit.changelog.test_erased import erased

pytestmark = pytest.mark.unit

ERASED, NOBODY_HERE = erased(KEY.decode()), erased("somebody else")


def test_load_refuses_a_line_with_its_number() -> None:
    line = json.dumps({"entity": "order", "envelope": json.loads(change(SAMPLES["order"]))}).encode()
    refused: list[tuple[str, int, str]] = []
    assert list(records([line], "f", lambda *said: refused.append(said), ERASED)) == []
    assert refused == [("f", 1, IS_ERASED)]
    assert len(list(records([line], "f", lambda *_: None, NOBODY_HERE))) == 1


def test_a_source_that_is_checked_is_refused() -> None:
    record, refused = Record("changelog.order", KEY, change(SAMPLES["order"])), list[str]()
    assert list(checked([record], lambda _, reason: refused.append(reason), ERASED)) == []
    assert refused == [IS_ERASED]
    assert list(checked([record], lambda *_: None, NOBODY_HERE)) == [record]


def test_a_command_is_rejected_and_its_answer_names_nobody() -> None:
    told = place()
    made = answer(told, Memory(guest()), lambda _: None, erased=erased("g1"))
    assert made.outputs == ()
    assert (made.outcome.status, [reason.code for reason in made.outcome.reasons]) == ("rejected", ["erased"])
    assert (made.outcome.id, made.outcome.guest) == (None, None)
    assert made.outcome.source == told.source
    assert answer(told, Memory(guest()), lambda _: None, erased=NOBODY_HERE).outcome.status == "accepted"


def test_capture_writes_nothing_and_ends_what_it_kept_as_bad() -> None:
    record = Record("changelog.order", KEY, b"{}")
    assert admit(record, ERASED) is None
    assert admit(record, NOBODY_HERE) is record
    bad = Record(BAD_TOPIC, b"order/o-1", json.dumps({"ref": "o-1", "guestRef": KEY.decode()}).encode())
    assert admit(bad, ERASED) == bad._replace(value=None)
    assert admit(bad, NOBODY_HERE) == bad
    assert admit(bad._replace(value=None), ERASED) == bad._replace(value=None)


def test_what_takes_a_newest_version_away_lies_between_what_was_and_what_comes() -> None:
    made = burial("order", 2, "o-1", 41, 3)
    headers = {name: str(value) for name, value in made.source.headers()}
    entry = Entry(made.topic, made.partition, 99, 0, made.key, made.value, headers)
    source = source_of(entry)
    assert (made.topic, made.key, made.value) == ("latest.order", b"o-1", None)
    assert (source.topic, source.partition, source.offset) == ("changelog.order", 2, 40)
    assert (source.service, source.identifier) == ("erasure", "3")
