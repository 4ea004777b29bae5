"""The checker finds one lost, one doubled and one altered record in every place, and nothing in a log that is whole."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.faults import checker as c
from tests.faults.journal import BAD, CHANGE, TOMBSTONE, Journal, Sent, digest, read_journal
from tests.oracle import LogRecord

pytestmark = pytest.mark.unit

ORDER, EVENT = "changelog.order", "changelog.event"
T0 = 1_795_305_600_000_000


def order(ref: str, total: float, original: dict[str, Any] | None = None, identifier: str = "") -> bytes:
    current = {
        "ref": ref, "guestRef": "mine-g", "status": "PLACED", "currency": "GBP", "country": "GB", "total": total,
        "items": [{"sku": "s", "name": None, "quantity": 1, "unitPrice": total}],
        "createdAt": "2026-11-22T00:00:00.000Z", "modifiedAt": "2026-11-22T00:00:00.000Z", "unknown": 1,
    }  # fmt: skip
    provenance = {"apiVersion": "1", "serviceName": "shop", "identifier": identifier or ref}
    return json.dumps({"provenance": provenance, "current": current, "original": original}).encode()


VALUES = [order("a", 1.5), order("b", 2), b"{", None, order("a", 1.5), order("c", 3)]
KINDS = [CHANGE, CHANGE, BAD, TOMBSTONE, CHANGE, CHANGE]
"""What is sent of one guest: two orders, a broken record, a tombstone, a copy, and an order."""


def whole() -> tuple[Journal, list[LogRecord]]:
    """A journal and a Kafka that agree; the last record was never acknowledged and is there all the same."""
    journal = Journal({b"mine-"})
    log = []
    for offset, (value, kind) in enumerate(zip(VALUES, KINDS, strict=True)):
        identity = ("shop", json.loads(value or b"")["provenance"]["identifier"]) if kind == CHANGE else (None, None)
        journal.sent[offset] = Sent(ORDER, b"mine-g", digest(value), kind, *identity)
        if offset < 5:
            journal.placed[ORDER, 0, offset] = offset
        log.append(LogRecord(ORDER, 0, offset, b"mine-g", value, T0 + offset * 1000))
    return journal, log


def truth() -> c.Truth:
    journal, log = whole()
    return c.truth_of(journal, log, {(ORDER, 0): 0}, [])


def what(found: list[c.Finding]) -> list[tuple[str, str]]:
    return [(one.where, one.what) for one in found]


def test_kinds_and_identities_are_told_by_plain_code() -> None:
    kinds = [truth().kinds[ORDER, 0, offset] for offset in range(6)]
    assert kinds == [CHANGE, CHANGE, BAD, TOMBSTONE, c.DUPLICATE, CHANGE]
    assert truth().identities[ORDER, 0, 4] == ("shop", "a")


def test_a_kafka_that_has_what_was_acknowledged_is_whole() -> None:
    journal, log = whole()
    assert c.check_kafka(journal, log, {}) == []
    assert c.check_kafka(journal, log[:5], {}) == [], "what was never acknowledged may be missing"
    others = LogRecord(ORDER, 0, 6, b"theirs", b"{}", T0)
    assert c.check_kafka(journal, [*log, others], {}) == []


@pytest.mark.parametrize("offset", range(5))
def test_a_record_that_kafka_lost_doubled_or_altered_is_named(offset: int) -> None:
    journal, log = whole()
    lost = c.check_kafka(journal, [record for record in log if record.offset != offset], {})
    assert what(lost) == [(c.KAFKA, c.LOST)]
    assert f"{ORDER}/0@{offset}" in str(lost[0])
    doubled = c.check_kafka(journal, [*log, log[offset]._replace(offset=6)], {})
    assert what(doubled) == [(c.KAFKA, c.DOUBLED)]
    log[offset] = log[offset]._replace(value=b"{}")
    altered = c.check_kafka(journal, log, {})
    assert what(altered) == [(c.KAFKA, c.ALTERED)]
    assert f"@{offset}" in altered[0].record


def test_a_place_that_kafka_gave_away_after_it_had_acknowledged_a_record_is_named() -> None:
    journal, log = whole()
    journal.displaced.append(((ORDER, 0, 4), 3))
    (found,) = c.check_kafka(journal, log, {})
    assert (found.where, found.what) == (c.KAFKA, c.LOST)


def test_what_was_unknown_may_be_there_once_and_not_twice() -> None:
    journal, log = whole()
    assert what(c.check_kafka(journal, [*log, log[5]._replace(offset=6)], {})) == [(c.KAFKA, c.DOUBLED)]
    assert what(c.check_kafka(journal, [*log, log[5]._replace(offset=6, value=b"x")], {})) == [(c.KAFKA, c.EXTRA)]


def test_what_kafka_let_go_of_is_asked_of_the_raw_objects() -> None:
    journal, log = whole()
    begin = {(ORDER, 0): 3}
    assert c.check_kafka(journal, log[3:], begin) == []
    known = c.truth_of(journal, log[3:], begin, stored()[1:])
    assert [one.record for one in c.lost_for_good(journal, known)] == [f"{ORDER}/0@0"]
    whole_again = c.truth_of(journal, log[3:], begin, stored())
    assert c.lost_for_good(journal, whole_again) == []
    assert whole_again.kinds == truth().kinds


def stored() -> list[c.Stored]:
    return [
        c.Stored((ORDER, 0, r.offset), r.key, r.value or b"", r.time, f"object-{r.offset // 3}") for r in whole()[1]
    ]


def test_raw_objects_with_everything_are_whole() -> None:
    assert c.check_raw(truth(), stored(), {(ORDER, 0): 6}) == []
    assert c.check_raw(truth(), stored()[:4], {(ORDER, 0): 4}) == [], "what is not committed may be missing"


@pytest.mark.parametrize("offset", range(6))
def test_a_record_that_raw_objects_lost_doubled_or_altered_is_named(offset: int) -> None:
    rows, below = stored(), {(ORDER, 0): 6}
    lost = c.check_raw(truth(), [row for row in rows if row.place[2] != offset], below)
    assert what(lost) == [(c.RAW, c.LOST)]
    assert f"@{offset}" in lost[0].record
    doubled = c.check_raw(truth(), [*rows, rows[offset]._replace(name="another")], below)
    assert what(doubled) == [(c.RAW, c.DOUBLED)]
    assert "another" in doubled[0].detail
    changes: list[dict[str, Any]] = [{"value": b"?"}, {"key": b"other"}, {"time": 1}]
    for change in changes:
        altered = c.check_raw(truth(), [*rows[:offset], rows[offset]._replace(**change), *rows[offset + 1 :]], below)
        assert what(altered) == [(c.RAW, c.ALTERED)]
    assert what(c.check_raw(truth(), [*rows, rows[offset]._replace(place=(ORDER, 0, 9))], below)) == [(c.RAW, c.EXTRA)]


def archived() -> list[c.Archived]:
    rows = []
    for record in whole()[1]:
        place = (ORDER, 0, record.offset)
        kind = truth().kinds[place]
        service, identifier = truth().identities.get(place, (None, None))
        current, value = None, record.value
        if kind == CHANGE:
            said = json.loads(record.value or b"", parse_float=Decimal)["current"]
            amount = Decimal(said["total"]).quantize(Decimal("0.0001"))
            current = {
                "ref": said["ref"], "guest_ref": "mine-g", "total": amount, "country": "GB", "session_ref": None,
                "items": [{"sku": "s", "name": None, "quantity": Decimal("1.0000"), "unit_price": amount}],
                "created_at": datetime(2026, 11, 22, tzinfo=UTC),
            }  # fmt: skip
            value = None
        rows.append(
            c.Archived(place, record.offset, kind, record.time, record.key, service, identifier, value, current)
        )
    return rows


def test_an_archive_with_everything_is_whole() -> None:
    assert c.check_archive(truth(), archived()) == []
    assert c.check_archive(truth(), archived()[:3]) == [], "what lies beyond its position may be missing"
    beyond = c.Archived((ORDER, 0, 6), 8, c.EMPTY, None, None, None, None, None)
    assert c.check_archive(truth(), [*archived(), beyond]) == []


@pytest.mark.parametrize("offset", range(5))
def test_a_record_that_the_archive_lost_or_doubled_is_named(offset: int) -> None:
    rows = archived()
    lost = c.check_archive(truth(), [row for row in rows if row.place[2] != offset])
    assert what(lost) == [(c.ARCHIVE, c.LOST)]
    assert f"@{offset}" in lost[0].record
    doubled = c.check_archive(truth(), [*rows, rows[offset]])
    assert what(doubled) == [(c.ARCHIVE, c.DOUBLED)]
    empty = c.Archived((ORDER, 0, offset), offset, c.EMPTY, None, None, None, None, None)
    hidden = c.check_archive(truth(), [*rows[:offset], empty, *rows[offset + 1 :]])
    assert what(hidden) == [(c.ARCHIVE, c.LOST)]
    assert what(c.check_archive(truth(), [*rows, rows[offset]._replace(place=(ORDER, 0, 7))])) == [(c.ARCHIVE, c.EXTRA)]


ALTERED: list[Callable[[c.Archived], c.Archived]] = [
    lambda row: row._replace(kind=c.DUPLICATE),
    lambda row: row._replace(key=b"other"),
    lambda row: row._replace(time=1),
    lambda row: row._replace(identifier="other"),
    lambda row: row._replace(current={**(row.current or {}), "total": Decimal("9.0000")}),
    lambda row: row._replace(current={**(row.current or {}), "country": None}),
    lambda row: row._replace(current={**(row.current or {}), "items": []}),
    lambda row: row._replace(current=None),
    lambda row: row._replace(original=row.current),
]


@pytest.mark.parametrize("change", ALTERED)
def test_a_change_that_the_archive_altered_is_named(change: Callable[[c.Archived], c.Archived]) -> None:
    rows = archived()
    found = c.check_archive(truth(), [change(rows[0]), *rows[1:]])
    assert what(found) == [(c.ARCHIVE, c.ALTERED)]
    assert found[0].record == f"{ORDER}/0@0 (shop, a)"


def test_a_bad_record_that_is_altered_lost_doubled_or_not_bad_is_named() -> None:
    right = ((ORDER, 0, 2), b"{")
    assert c.check_dead_letters(truth(), [right]) == []
    assert what(c.check_dead_letters(truth(), [])) == [(c.DEAD_LETTERS, c.LOST)]
    assert what(c.check_dead_letters(truth(), [right, right])) == [(c.DEAD_LETTERS, c.DOUBLED)]
    assert what(c.check_dead_letters(truth(), [((ORDER, 0, 2), b"[")])) == [(c.DEAD_LETTERS, c.ALTERED)]
    assert what(c.check_dead_letters(truth(), [right, ((ORDER, 0, 0), b"{")])) == [(c.DEAD_LETTERS, c.EXTRA)]


def epochs() -> list[c.Epoch]:
    def one(epoch: int, start: int, end: int, *numbers: int) -> c.Epoch:
        kinds = dict(zip((CHANGE, c.DUPLICATE, BAD, TOMBSTONE), numbers, strict=True))
        return c.Epoch(1, epoch, (ORDER, 0), start, end, kinds)

    return [one(0, 0, 3, 2, 0, 1, 0), one(1, 3, 3, 0, 0, 0, 0), one(2, 3, 6, 1, 1, 0, 1)]


def test_epochs_that_follow_each_other_and_count_everything_are_whole() -> None:
    assert c.check_speed(truth(), epochs()) == []
    beyond_the_horizon = epochs()[2]._replace(kinds={CHANGE: 2, c.DUPLICATE: 0, BAD: 0, TOMBSTONE: 1})
    assert c.check_speed(truth(), [*epochs()[:2], beyond_the_horizon]) == []


def test_an_epoch_that_is_lost_doubled_or_counts_otherwise_is_named() -> None:
    first, second, third = epochs()
    assert what(c.check_speed(truth(), [first, third._replace(start=4)]))[0] == (c.SPEED, c.LOST)
    assert what(c.check_speed(truth(), [first, second, third, third]))[0] == (c.SPEED, c.DOUBLED)
    less = third._replace(kinds={**third.kinds, CHANGE: 0})
    assert what(c.check_speed(truth(), [first, second, less])) == [(c.SPEED, c.LOST)]
    more = third._replace(kinds={**third.kinds, CHANGE: 2})
    assert what(c.check_speed(truth(), [first, second, more])) == [(c.SPEED, c.DOUBLED)]
    other = first._replace(kinds={CHANGE: 3, c.DUPLICATE: 0, BAD: 0, TOMBSTONE: 0})
    assert what(c.check_speed(truth(), [other, second, third])) == [(c.SPEED, c.ALTERED)]


@pytest.mark.parametrize("view", ["order_latest", "revenue", "guest_spend", "product_sales"])
def test_a_row_that_a_view_lost_doubled_or_altered_is_named(view: str) -> None:
    oracle = truth().fold()
    must = getattr(oracle, view)()
    rows, keys = sorted(must, key=str), c.KEYS[view]
    about = c.newest_records(truth(), oracle)[view]
    assert c.check_view(view, rows, must, keys, about) == []
    assert what(c.check_view(view, rows[1:], must, keys, about)) == [(view, c.LOST)]
    assert what(c.check_view(view, [*rows, rows[0]], must, keys, about)) == [(view, c.DOUBLED)]
    other = (*rows[0][:-1], rows[0][-1] + 1)
    altered = c.check_view(view, [other, *rows[1:]], must, keys, about)
    assert what(altered) == [(view, c.ALTERED)]
    assert what(c.check_view(view, [*rows, ("nobody", *rows[0][1:])], must, keys, about)) == [(view, c.EXTRA)]
    if view == "order_latest":
        assert "from changelog.order/0@0 (shop, a)" in altered[0].record


def test_an_approximate_number_may_be_a_little_off_and_nothing_else_may() -> None:
    must = {("12:00", "VIEW", "WEB", 500, 200)}
    near: list[tuple[Any, ...]] = [("12:00", "VIEW", "WEB", 500, 209)]
    assert c.check_view("traffic", near, must, 3) == []
    for far in ((500, 213), (501, 200)):
        row: tuple[Any, ...] = ("12:00", "VIEW", "WEB", *far)
        assert what(c.check_view("traffic", [row], must, 3)) == [("traffic", c.ALTERED)]


def test_a_journal_is_read_as_far_as_a_killed_writer_wrote_it(tmp_path: Path) -> None:
    sent = ["s", 0, ORDER, b"mine-g".hex(), digest(b"x"), BAD, None, None]
    again = ["s", 1, ORDER, None, digest(b"y"), BAD, None, None]
    lines = [["p", "mine-"], sent, again, ["a", 0, 3, 17]]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '["a", 1, 3')
    (tmp_path / "2.jsonl").write_text(json.dumps(sent) + "\n" + json.dumps(["a", 0, 1, 5]) + "\n")
    journal = read_journal(tmp_path)
    assert journal.owns(b"mine-g")
    assert not journal.owns(b"yours")
    assert not journal.owns(None)
    assert {place: journal.sent[number].digest for place, number in journal.placed.items()} == {
        (ORDER, 3, 17): digest(b"x"), (ORDER, 1, 5): digest(b"x"),
    }  # fmt: skip
    assert journal.unknown() == {(ORDER, None, digest(b"y")): 1}
