"""The law of matches: those of any part of a log are those of its end without those of its beginning, whoever looks
for them: histories in memory, or a store on disk that is asked epoch by epoch, again after a crash, and filled from an
archive."""

import json
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.positions import Vector, covers, highest
from runtime.errors import LostStateError
from speed.history import Store, check
from tests.oracle import LogRecord, Oracle
from views.alerting import Alert
from views.matching import Progress, Remembered, matching, seen_in, side_rows, triggers
from views.registry import all_views

pytestmark = pytest.mark.property

VIEWS = matching(all_views())
TOPICS = ("changelog.event", "changelog.order")
PARTITIONS = 2
BEGAN = datetime(2026, 11, 21, 22, tzinfo=UTC)
STEPS = st.sampled_from([0, 0, 1, 1, 60, 60, 599, 1200, 1800, 4200])
"""Seconds between records: around every limit that a view has."""


@st.composite
def logs(draw: st.DrawFn) -> list[LogRecord]:
    """Events and orders of a few guests, in the order in which they were appended; what they say of their time is
    somewhere around it."""
    log: list[LogRecord] = []
    time = BEGAN
    orders: dict[str, tuple[str, dict[str, Any]]] = {}
    for number in range(draw(st.integers(1, 30))):
        time += timedelta(seconds=draw(STEPS))
        guest = draw(st.sampled_from(["a", "a", "a", "a\x00", "é" * 200]))
        partition = len(guest) % PARTITIONS
        created = time - timedelta(seconds=draw(st.sampled_from([0, 1, 60, 600, 1800, 3600, 3601, -60])))
        said = {"guestRef": guest, "createdAt": created.strftime("%Y-%m-%dT%H:%M:%S.000Z")}
        kind = draw(st.sampled_from(["event", "event", "order", "cancel", "cancel", "nothing"]))
        topic = TOPICS[kind not in ("event", "nothing")]
        original: dict[str, Any] | None = None
        current: dict[str, Any] | None = None
        if kind == "event":
            current = {
                **said,
                "ref": f"e{number}",
                "type": draw(st.sampled_from(["VIEW", "ADD", "SEARCH"])),
                "channel": "WEB",
            }
        elif kind == "order" or (kind == "cancel" and not orders):
            total = draw(st.sampled_from([1, 499, 500, 700]))
            current = {**said, "ref": f"o{number}", "currency": "EUR", "total": total, "status": "PLACED"}
            orders[f"o{number}"] = (guest, current)
        elif kind == "cancel":
            ref = draw(st.sampled_from(sorted(orders)))
            guest, original = orders[ref]
            current = {**original, "status": draw(st.sampled_from(["CANCELLED", "CANCELLED", "PAID"]))}
            orders[ref] = (guest, current)
            partition = len(guest) % PARTITIONS
        offset = sum(1 for record in log if (record.topic, record.partition) == (topic, partition))
        provenance = {"apiVersion": "1", "serviceName": "t", "identifier": str(number)}
        value = json.dumps({"provenance": provenance, "current": current, "original": original}) if current else ""
        micros = int(time.timestamp()) * 1_000_000
        log.append(LogRecord(topic, partition, offset, guest.encode(), value.encode(), micros))
    return log


def told(record: LogRecord) -> dict[str, Any]:
    """What ``side_record`` makes of a record, said once more in Python."""
    place = {"topic": record.topic, "kafka_partition": record.partition, "kafka_offset": record.offset}
    said = json.loads(record.value) if record.value else {}
    current, original = said.get("current"), said.get("original")
    if not current:
        return {**place, "time": record.time, "sides": []}
    created = int(datetime.fromisoformat(current["createdAt"]).timestamp()) * 1_000_000
    sides: list[tuple[str, str, int, str, dict[str, Any]]] = []
    if record.topic == "changelog.event":
        group = f"{current['type']}|{current['channel']}"
        if current["type"] in ("VIEW", "ADD"):
            sides.append(("conversion", "event", created, group, {}))
        if current["type"] == "ADD":
            added = {"ref": current["ref"], "channel": current["channel"], "sku": ""}
            sides.append(("cart_abandoned", "added", record.time, "", added))
    else:
        order = {"ref": current["ref"], "currency": current["currency"], "total": str(current["total"])}
        if not original:
            sides += [("conversion", "order", created, "", order), ("cart_abandoned", "order", record.time, "", {})]
            if current["total"] >= 500:
                sides.append(("large_first_order", "order", record.offset, "", order))
        if current["status"] == "CANCELLED" and (original or {}).get("status") != "CANCELLED":
            sides.append(("cancellations", "cancelled", record.time, "", order))
    found = [
        {"view": view, "side": side, "order": by, "group": group, "payload": json.dumps(payload)}
        for view, side, by, group, payload in sides
    ]
    return {**place, "time": record.time, "guest": current["guestRef"], "sides": found}


def position(log: list[LogRecord], ends: tuple[int, int]) -> Vector:
    """The position before the records with these numbers, one for each topic."""
    vector: Vector = {topic: dict.fromkeys(range(PARTITIONS), 0) for topic in TOPICS}
    for number, record in enumerate(log):
        if number < ends[TOPICS.index(record.topic)]:
            vector[record.topic][record.partition] = record.offset + 1
    return vector


def between(log: list[LogRecord], start: Vector, end: Vector) -> list[LogRecord]:
    return [r for r in log if start[r.topic][r.partition] <= r.offset < end[r.topic][r.partition]]


def progress(log: list[LogRecord], at: Vector) -> Progress:
    reached: dict[tuple[str, int], int] = {}
    for record in between(log, position(log, (0, 0)), at):
        place = record.topic, record.partition
        reached[place] = max(reached.get(place, 0), record.time)
    return reached


def in_memory(log: list[LogRecord], start: Vector, end: Vector) -> list[tuple[str, str]]:
    """(view, match) of a part of a log, as the batch layer finds them."""
    found = []
    before, after = progress(log, start), progress(log, end)
    histories: dict[tuple[str, str], list[Any]] = {}
    for record in between(log, position(log, (0, 0)), end):
        for line in side_rows(told(record)):
            histories.setdefault((line["view"], line["guest"]), []).append(seen_in(line, start))
    named = {view.name: view for view in VIEWS}
    for (name, _), records in histories.items():
        triggering = [seen for seen in records if triggers(named[name], seen, before, after)]
        found += [(name, match) for match in named[name].found(triggering, Remembered(records))]
    return found


def in_stores(
    log: list[LogRecord],
    vectors: list[Vector],
    directory: Path,
    crashes: set[int],
    warm: Vector | None,
    copies: Collection[LogRecord] = (),
) -> list[list[tuple[str, str]]]:
    """(view, match) of each epoch between ``vectors``, as the speed layer finds them; an epoch in ``crashes`` is asked
    twice, with the stores opened anew. ``warm``: what lies before it is put in as from the archive, which knows
    ``copies``; the stream does not know them before it."""
    found: list[list[tuple[str, str]]] = []
    zero = position(log, (0, 0))
    filled = warm or zero
    first = between(log, zero, filled)

    def as_seen(record: LogRecord, is_known: bool) -> dict[str, Any]:
        return told(record) | ({"sides": []} if is_known and record in copies else {})

    for epoch, (start, end) in enumerate([(zero, vectors[0]), *pairwise(vectors)], -1):
        for _ in range(2 if epoch in crashes else 1):
            answers = []
            with ExitStack() as stack:
                for partition in range(PARTITIONS):
                    store = Store(directory / str(partition), VIEWS)
                    stack.callback(store.close)
                    part = between(log, start, end) if epoch >= 0 else first
                    records = [
                        as_seen(one, epoch < 0 or one.offset >= filled[one.topic][partition])
                        for one in part
                        if one.partition == partition
                    ]
                    if epoch < 0:
                        store.fill(records)
                        store.begin(end, progress(log, end), partition)
                        continue
                    check(store, epoch - 1, directory)
                    store.put(records, epoch, start, end, partition, filled)
                    matches = store.matches(records, start, end, partition, filled)
                    answers += [(match["matched"], match["payload"]) for match in matches]
        if epoch >= 0:
            found.append(answers)
    return found


def of_oracle(log: list[LogRecord]) -> dict[str, set[tuple[Any, ...]]]:
    oracle = Oracle(log, set())
    return {view.name: getattr(oracle, view.name)() for view in VIEWS}


def as_read(found: list[tuple[str, str]]) -> dict[str, set[tuple[Any, ...]]]:
    """What the views make of matches, to be compared with the oracle."""
    read: dict[str, set[tuple[Any, ...]]] = {view.name: set() for view in VIEWS}
    orders: dict[tuple[Any, ...], list[float]] = {}
    for name, text in found:
        match = json.loads(text)
        if name == "conversion":
            day = datetime.fromtimestamp(match["created"] / 1e6, UTC).date()
            orders.setdefault((day, match["type"], match["channel"], match["currency"]), []).append(
                float(match["total"])
            )
        else:
            read[name].add((match["guest_ref"], match["source_partition"], match["source_offset"]))
    read["conversion"] = {(*key, len(totals), sum(totals)) for key, totals in orders.items()}
    return read


@given(
    log=logs(),
    cuts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6),
    crashes=st.sets(st.integers(0, 6)),
)
@settings(max_examples=150)
def test_every_match_is_found_once_in_whatever_pieces_and_by_both_layers(
    log: list[LogRecord], cuts: list[tuple[int, int]], crashes: set[int]
) -> None:
    assert_law(log, cuts, crashes)


def assert_law(log: list[LogRecord], cuts: list[tuple[int, int]], crashes: set[int]) -> None:
    """Cut a log into epochs, and compare what both layers find in each with what plain Python says of the whole."""
    vectors = positions(log, cuts)
    whole = in_memory(log, vectors[0], vectors[-1])
    assert len(set(whole)) == len(whole)
    assert as_read(whole) == of_oracle(log)
    with tempfile.TemporaryDirectory() as directory:
        epochs = in_stores(log, vectors, Path(directory) / "whole", crashes, None)
        assert sorted(match for epoch in epochs for match in epoch) == sorted(whole)
        for number, (start, end) in enumerate(pairwise(vectors)):
            assert sorted(in_memory(log, start, end)) == sorted(epochs[number]), "an incremental batch run"
        middle = len(vectors) // 2
        later = in_stores(log, vectors[middle:], Path(directory) / "later", crashes, vectors[middle])
        assert later == epochs[middle:], "a generation that was filled from the archive"


def positions(log: list[LogRecord], cuts: list[tuple[int, int]]) -> list[Vector]:
    """From the beginning of a log to its end. Positions only go forward; one topic may be far behind the other."""
    ends = [(0, 0)]
    for cut in [*cuts, (len(log), len(log))]:
        ends.append((max(ends[-1][0], cut[0]), max(ends[-1][1], cut[1])))
    return [position(log, cut) for cut in ends]


@given(
    log=logs(),
    cuts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6),
    between_them=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    copied=st.sets(st.integers(0, 30)),
    crashes=st.sets(st.integers(0, 6)),
)
@settings(max_examples=150)
def test_a_generation_that_takes_copies_for_changes_until_it_is_warm_finds_what_is_right(
    log: list[LogRecord],
    cuts: list[tuple[int, int]],
    between_them: tuple[int, int],
    copied: set[int],
    crashes: set[int],
) -> None:
    """It begins behind the first of two copies, so it cannot know the second. No alert is made of that, none is missed,
    and once it is warm it finds what one finds that knew all of them."""
    copies = [one for number, one in enumerate(log) if number in copied]
    vectors = positions(log, cuts)
    middle = len(vectors) // 3
    warm = highest(vectors[middle], position(log, between_them))
    with tempfile.TemporaryDirectory() as directory:
        right = in_stores(log, vectors, Path(directory) / "right", set(), None, copies)
        found = in_stores(log, vectors[middle:], Path(directory) / "found", crashes, warm, copies)
    cold = next((n for n, start in enumerate(vectors[:-1]) if n >= middle and covers(start, warm)), len(right))
    assert found[cold - middle :] == right[cold:]
    alerts = {view.name for view in VIEWS if view.alert}
    sent = {match for epoch in found[: cold - middle] for match in epoch if match[0] in alerts}
    assert sent <= {match for epoch in right for match in epoch}
    assert sent >= {match for epoch in right[middle:cold] for match in epoch if match[0] in alerts}


def record(topic: str, offset: int, seconds: int, created: int, original: bool = False, **said: Any) -> LogRecord:
    """A record of guest a, appended and created so many seconds after the beginning; ``original``: an update."""
    at = (BEGAN + timedelta(seconds=created)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    current = {"ref": str(offset), "guestRef": "a", "createdAt": at, "channel": "WEB", **said}
    envelope = {"provenance": {"serviceName": "t", "identifier": f"{topic}{offset}"}, "current": current}
    value = json.dumps(envelope | ({"original": current} if original else {}))
    time = int((BEGAN + timedelta(seconds=seconds)).timestamp()) * 1_000_000
    return LogRecord(f"changelog.{topic}", 1, offset, b"a", value.encode(), time)


ORDER: Any = {"currency": "EUR", "total": 600, "status": "PLACED"}
CONSTRUCTED = {
    "two late events for one order": [
        record("order", 0, 10, 10, **ORDER),
        record("event", 0, 20, 5, type="VIEW"),
        record("event", 1, 30, 6, type="VIEW"),
    ],
    "an event that only the first pair still remembers": [
        record("event", 0, 0, 0, type="VIEW"),
        record("order", 0, 4100, 3000, **ORDER),
        record("order", 1, 8100, 9000, **ORDER),
        record("event", 1, 8150, 8150, type="SEARCH"),
        record("event", 2, 8200, 2000, type="VIEW"),
    ],
    "one topic far behind the other": [
        record("order", 0, 0, 0, **ORDER),
        record("order", 1, 20_000, 20_000, **ORDER),
        record("event", 0, 1, -1, type="VIEW"),
        record("event", 1, 2, 2, type="ADD"),
        record("event", 2, 20_001, 19_999, type="ADD"),
    ],
    "an order of the very last millisecond": [
        record("event", 0, 0, 0, type="ADD"),
        record("event", 1, 1800, 1800, type="SEARCH"),
        record("order", 0, 1800, 1800, status="PAID", currency="EUR", total=1, original=True),
        record("order", 1, 1800, 1800, **ORDER),
        record("event", 2, 1801, 1801, type="SEARCH"),
        record("order", 2, 1801, 1801, status="PAID", currency="EUR", total=1, original=True),
    ],
    "a cart that is left, and one that is not": [
        record("event", 0, 0, 0, type="ADD"),
        record("event", 1, 1800, 1800, type="ADD"),
        record("event", 2, 3601, 3601, type="ADD"),
        record("order", 0, 3601, 3601, **ORDER),
        record("event", 3, 9000, 9000, type="SEARCH"),
        record("order", 1, 9000, 9000, **ORDER),
    ],
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_logs_that_were_made_to_be_difficult(name: str) -> None:
    log = CONSTRUCTED[name]
    number = len(log)
    steps = [(n, n) for n in range(number)]
    assert_law(log, steps, set())
    assert_law(log, [(0, n) for n in range(number)], {1, 2})
    assert_law(log, [(n, 0) for n in range(number)], {0, 3})


def test_stores_that_were_lost_or_missed_an_epoch_are_refused(tmp_path: Path) -> None:
    zero = position([], (0, 0))
    store = Store(tmp_path, VIEWS)
    with pytest.raises(LostStateError, match="lost or put back"):
        check(store, -1, tmp_path)
    for epoch in (-1, 0, 1):
        store.put([], epoch, zero, zero, 0, zero)
    check(store, 0, tmp_path)
    check(store, 1, tmp_path)
    for done in (-1, 2, 3):
        with pytest.raises(LostStateError, match="stand at epoch 1"):
            check(store, done, tmp_path)
    store.close()


def test_what_no_match_can_reach_any_more_is_dropped(tmp_path: Path) -> None:
    """Two days of events an hour apart: the stores hold the last hours only, and the first large order."""
    store = Store(tmp_path, VIEWS)
    zero, sizes = position([], (0, 0)), []
    before = zero
    for hour in range(48):
        at = int((BEGAN + timedelta(hours=hour)).timestamp()) * 1_000_000
        created = (BEGAN + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        said = {
            "guestRef": "a",
            "createdAt": created,
            "currency": "EUR",
            "total": 500,
            "status": "PLACED",
            "type": "ADD",
        }
        value = json.dumps({"current": {**said, "ref": "r", "channel": "WEB"}}).encode()
        records = [LogRecord(topic, 1, hour, b"a", value, at) for topic in TOPICS]
        after = {topic: {0: 0, 1: hour + 1} for topic in TOPICS}
        store.put([told(record) for record in records], hour, before, after, 1, zero)
        sizes.append(store.size()["records"])
        before = after
    kept_for_ever = 48
    assert sizes[-1] - kept_for_ever == sizes[10] - 11, "it levels off"
    assert sizes[-1] - kept_for_ever < 6 * 4
    assert set(store.size()) == {"records", "bytes", "limit_bytes"}
    store.close()


def test_an_alert_says_what_alerts_say() -> None:
    alerts = [view for view in VIEWS if isinstance(view, Alert)]
    assert [view.name for view in alerts] == ["cancellations", "cart_abandoned", "large_first_order"]
