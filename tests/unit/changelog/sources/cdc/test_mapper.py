"""What follows for the log, case by case. The law over all of them is in tests/property/test_cdc.py."""

from pathlib import Path
from typing import Any

import pytest

from changelog.envelope import encode, envelope
from changelog.exact import parse
from changelog.producer import Record
from changelog.sources.cdc.events import (
    Aborted,
    Anew,
    Changed,
    Completed,
    End,
    Event,
    Read,
    Started,
    TableRead,
    Truncated,
)
from changelog.sources.cdc.mapper import BAD_TOPIC, SERVICE, Mark, lsn_text
from changelog.sources.cdc.mapping import UNAVAILABLE
from changelog.validation import check
from runtime.errors import ContractError
from tests.captured import TABLES, TIME, Log, Service, item_row, order_row

pytestmark = pytest.mark.unit


class Stream:
    """A stream of events, and the service that takes them."""

    def __init__(self, log: Log, directory: Path) -> None:
        self.events: list[Event] = []
        self.log, self.directory, self.tx = log, directory, 500
        self.service = Service(log, directory / "0")

    def __call__(self, *events: Event) -> list[tuple[str, Any, Any]]:
        """Send events and take them. Returns what was written to the log since: key, original, current."""
        before = len(self.log.records)
        self.events += events
        while self.service.next < len(self.events):
            assert self.service.take(self.events, 100, 2, None)
        return [said(record) for record in self.log.records[before:]]

    def commit(self, *rows: tuple[str, str, Any, Any]) -> list[tuple[str, Any, Any]]:
        """A transaction of (op, table, before, after)."""
        self.tx += 1
        made: list[Event] = []
        for order, (op, table, before, after) in enumerate(rows, 1):
            made.append(
                Truncated(table, self.tx, order)
                if op == "t"
                else Changed(table, self.tx, order, op == "c", before, after)
            )
        return self(*made, End(self.tx, self.tx * 100, len(rows)))

    def snapshot(self, *rows: tuple[str, Any], tables: tuple[str, ...] = TABLES) -> list[tuple[str, Any, Any]]:
        read = [Read(table, row) for table, row in rows]
        return self(Started(), *read, *(TableRead(table, True) for table in tables), Completed())

    def restart(self) -> None:
        self.service.mapper.close()
        self.service = Service(self.log, self.directory / str(len(self.events)))


def said(record: Record) -> tuple[str, Any, Any]:
    made = parse(record.value or b"")
    return (record.key or b"").decode(), made.get("original"), made.get("current")


def customer(key: int, **columns: Any) -> dict[str, Any]:
    return {"id": key, "first_name": "Ada", "created_at": TIME, "modified_at": TIME, **columns}


ORDER, ITEM = order_row(5, 1, "PLACED", 10), item_row(5, 1, 10)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """A stream whose first snapshot has shown customer 1 and order 5 with one item."""
    made = Stream(Log(), tmp_path)
    made(Anew("life"))
    made.snapshot(("customers", customer(1)), ("orders", ORDER), ("order_items", ITEM))
    return made


def test_a_snapshot_is_the_first_that_the_log_hears(stream: Stream) -> None:
    written = [said(record) for record in stream.log.records]
    assert [(key, original) for key, original, _ in written] == [("shop-guest-1", None)] * 2
    assert [current["ref"] for _, _, current in written] == ["shop-guest-1", "shop-order-5"]
    assert all(check(record.topic.split(".")[1], record.key, record.value or b"").reason is None
               for record in stream.log.records)  # fmt: skip


def test_an_item_alone_changes_its_order(stream: Stream) -> None:
    ((key, original, current),) = stream.commit(("u", "order_items", ITEM, {**ITEM, "name": "a name"}))
    assert key == "shop-guest-1"
    assert "name" not in original["items"][0]
    assert current["items"][0]["name"] == "a name"
    assert {k: v for k, v in current.items() if k != "items"} == {k: v for k, v in original.items() if k != "items"}


def test_what_comes_and_goes_within_a_transaction_has_not_happened(stream: Stream) -> None:
    new = customer(9)
    assert stream.commit(("c", "customers", None, new), ("d", "customers", new, None)) == []
    assert stream.commit(("u", "orders", ORDER, ORDER)) == []


def test_another_guest_is_a_delete_and_a_create_in_that_order(stream: Stream) -> None:
    deleted, created = stream.commit(("u", "orders", ORDER, {**ORDER, "customer_id": 2}))
    assert (deleted[0], deleted[1]["guestRef"], deleted[2]) == ("shop-guest-1", "shop-guest-1", None)
    assert (created[0], created[1], created[2]["guestRef"]) == ("shop-guest-2", None, "shop-guest-2")
    assert created[2]["items"] == deleted[1]["items"]


def test_another_key_is_another_entity_with_the_same_items(stream: Stream) -> None:
    moved, part = {**ORDER, "id": 6}, {**ITEM, "order_id": 6}
    written = stream.commit(
        ("d", "orders", ORDER, None), ("c", "orders", None, moved),
        ("d", "order_items", ITEM, None), ("c", "order_items", None, part),
    )  # fmt: skip
    assert [(original and original["ref"], current and current["ref"]) for _, original, current in written] == [
        ("shop-order-5", None), (None, "shop-order-6"),
    ]  # fmt: skip
    assert written[1][2]["items"] == written[0][1]["items"]


def test_truncate_deletes_all_that_is_known_and_nothing_of_others(stream: Stream) -> None:
    other = {"ref": "other-1", "createdAt": "2026-01-01T00:00:00.000Z", "modifiedAt": "2026-01-01T00:00:00.000Z"}
    stream.log.commit([Record("changelog.guest", b"other-1", encode(envelope("other", "1", other)))], None, "")
    stream.commit(("c", "customers", None, customer(2)))
    written = stream.commit(("t", "order_items", None, None))
    assert [current["items"] for _, _, current in written] == [[]]
    written = stream.commit(
        ("t", "orders", None, None), ("t", "customers", None, None), ("c", "customers", None, customer(3))
    )
    assert sorted((key, current is None) for key, _, current in written) == [
        ("shop-guest-1", True), ("shop-guest-1", True), ("shop-guest-2", True), ("shop-guest-3", False),
    ]  # fmt: skip


def test_a_row_that_the_log_refuses_is_kept_as_bad_and_the_next_goes_on_from_it(stream: Stream) -> None:
    without = {**ORDER, "currency": None}
    ((_, original, current),) = stream.commit(("u", "orders", ORDER, without))
    assert (original["currency"], "currency" in current) == ("GBP", False)
    assert stream.log.bad["order", "shop-order-5"] == current
    assert stream.commit(("u", "orders", without, without)) == [], "it is not said twice"
    stream.restart()
    ((_, _, current),) = stream.commit(("c", "order_items", None, item_row(5, 2, 20)))
    assert "currency" not in current, "what the shop says, not what the log said last"
    assert [one["line"] for one in current["items"]] == [1, 2]
    mended = {**ORDER, "currency": "EUR"}
    ((_, original, current),) = stream.commit(("u", "orders", without, mended))
    assert (original["currency"], len(original["items"])) == ("GBP", 1), "what was valid last"
    assert (current["currency"], len(current["items"])) == ("EUR", 2)
    assert stream.log.bad == {}


def test_one_that_returns_from_bad_to_what_it_was_is_no_change(stream: Stream) -> None:
    without = {**ORDER, "currency": None}
    stream.commit(("u", "orders", ORDER, without))
    assert stream.commit(("u", "orders", without, ORDER)) == []
    assert stream.log.bad == {}


def test_a_bad_one_that_is_deleted_is_deleted_as_it_was_valid(stream: Stream) -> None:
    without = {**ORDER, "currency": None}
    stream.commit(("u", "orders", ORDER, without))
    ((_, original, current),) = stream.commit(("d", "orders", without, None), ("d", "order_items", ITEM, None))
    assert (original["currency"], current) == ("GBP", None)
    assert stream.log.bad == {}


def test_a_transaction_that_is_delivered_again_is_nothing_new(stream: Stream) -> None:
    changed = {**ORDER, "status": "PAID"}
    assert len(stream.commit(("u", "orders", ORDER, changed), ("u", "order_items", ITEM, {**ITEM, "name": "n"}))) == 1
    again = stream.events[-3:]
    for part in (again, again[1:], again[2:]):
        assert stream(*part) == []
        stream.restart()
    assert len(stream.commit(("u", "orders", changed, {**ORDER, "status": "SHIPPED"}))) == 1


def test_the_rest_of_a_transaction_after_a_crash_completes_it(stream: Stream) -> None:
    changed = {**ORDER, "status": "PAID"}
    stream(Changed("orders", 900, 1, False, ORDER, changed))
    stream.restart()
    stream(Changed("orders", 900, 1, False, ORDER, changed), Changed("order_items", 900, 2, False, ITEM, None))
    ((_, _, current),) = stream(End(900, 90_000, 2))
    assert (current["status"], current["items"]) == ("PAID", [])


@pytest.mark.parametrize("came", [0, 1])
def test_rows_that_are_missing_stop_it(stream: Stream, came: int) -> None:
    with pytest.raises(ContractError, match="anabranch cdc anew"):
        stream(*[Changed("orders", 900, 1, False, ORDER, ORDER)][:came], End(900, 90_000, 2))


def test_an_identity_says_where_in_the_database_it_was(stream: Stream) -> None:
    stream.commit(("u", "orders", ORDER, {**ORDER, "customer_id": 2}))
    provenances = [parse(record.value or b"")["provenance"] for record in stream.log.records]
    assert {one["serviceName"] for one in provenances} == {SERVICE}
    assert [one["identifier"] for one in provenances[-2:]] == ["life:0/C3B4:501:shop-order-5"] * 2
    assert lsn_text(0x1_0000_00AB) == "1/AB"


def test_nothing_is_written_before_the_first_snapshot_is_complete(tmp_path: Path) -> None:
    stream = Stream(Log(), tmp_path)
    assert stream.commit(("c", "customers", None, customer(1))) == [], "before any life"
    stream(Anew("life"))
    assert stream.commit(("c", "customers", None, customer(2))) == []
    stream(Started(), Read("customers", customer(1)))
    assert stream.commit(("u", "customers", customer(1), customer(1, country="GB"))) == []
    stream.restart()
    assert stream.commit(("c", "customers", None, customer(3))) == []
    written = stream(*(TableRead(table, True) for table in TABLES), Completed())
    assert {current["ref"]: current.get("country") for _, _, current in written} == {
        "shop-guest-1": "GB", "shop-guest-3": None,
    }  # fmt: skip


def test_a_second_snapshot_writes_only_what_differs_and_deletes_what_is_gone(stream: Stream) -> None:
    stream.commit(("c", "customers", None, customer(2)))
    stream(Anew("next"))  # meanwhile, unseen: customer 1 moved, customer 2 went, customer 3 came
    stream.restart()
    written = stream.snapshot(
        ("customers", customer(1, country="FR")), ("customers", customer(3)), ("orders", ORDER), ("order_items", ITEM)
    )
    assert sorted((key, original is not None, current is not None) for key, original, current in written) == [
        ("shop-guest-1", True, True), ("shop-guest-2", True, False), ("shop-guest-3", False, True),
    ]  # fmt: skip
    assert stream.snapshot(
        ("customers", customer(1, country="FR")), ("customers", customer(3)), ("orders", ORDER), ("order_items", ITEM)
    ) == []  # fmt: skip


def test_a_snapshot_of_some_tables_says_nothing_of_the_others(stream: Stream) -> None:
    written = stream.snapshot(("customers", customer(1, country="FR")), tables=("customers",))
    assert [current["country"] for _, _, current in written] == ["FR"]
    assert stream.snapshot(("orders", {**ORDER, "status": "PAID"}), tables=("orders",)) == [], "items were not read"


def test_a_snapshot_of_which_a_table_failed_is_not_whole(tmp_path: Path) -> None:
    stream = Stream(Log(), tmp_path)
    stream(Anew("life"), Started(), Read("customers", customer(1)))
    stream(*(TableRead(table, table != "orders") for table in TABLES), Completed())
    assert [said(record)[0] for record in stream.log.records] == ["shop-guest-1"]
    assert stream.commit(("c", "customers", None, customer(2))) == []
    mark = stream.service.mapper.mark
    assert mark is not None
    assert (mark.whole, mark.since) == (False, None)


def test_a_snapshot_that_is_given_up_is_forgotten(stream: Stream) -> None:
    assert stream(Started(), Read("customers", customer(7)), Aborted()) == []
    assert stream(*(TableRead(table, True) for table in TABLES), Completed()) == []
    stream.restart()
    assert len(stream.commit(("c", "customers", None, customer(8)))) == 1


def test_what_was_read_loses_to_what_was_streamed(stream: Stream) -> None:
    stream(Started())
    stream.commit(("u", "customers", customer(1), customer(1, country="FR")))
    stream.commit(("d", "orders", ORDER, None), ("d", "order_items", ITEM, None))
    late = [Read("customers", customer(1)), Read("orders", ORDER), Read("order_items", ITEM)]
    assert stream(*late, *(TableRead(table, True) for table in TABLES), Completed()) == []


def test_a_snapshot_mends_what_somebody_else_wrote_each_time_under_another_identity(stream: Stream) -> None:
    rows = (("customers", customer(1)), ("orders", ORDER), ("order_items", ITEM))
    for number in range(2):
        there = stream.log.find("guest", "shop-guest-1")
        assert there is not None
        wrong = {**there[1].current, "country": "XX"}
        mistake = envelope("somebody", str(number), wrong, there[1].current)
        stream.log.commit([Record("changelog.guest", b"shop-guest-1", encode(mistake))], None, "")
        ((_, original, current),) = stream.snapshot(*rows)
        assert (original, "country" in current) == (wrong, False)
    identities = [parse(record.value or b"")["provenance"]["identifier"] for record in stream.log.records]
    assert len(set(identities)) == len(identities)


def test_an_order_that_nobody_knows_is_not_said_by_half(stream: Stream) -> None:
    strange = order_row(77, 1, "PLACED", 1)
    assert stream.commit(("u", "orders", strange, {**strange, "status": "PAID"})) == []
    assert stream.commit(("c", "order_items", None, item_row(78, 1, 1))) == []
    assert stream.service.mapper.unknown == 2
    part = item_row(78, 1, 1)
    assert stream.commit(("d", "orders", strange, None), ("d", "order_items", part, None)) == []
    assert stream.service.mapper.unknown == 2, "what is gone is not missed"


def test_items_of_an_order_that_somebody_else_wrote_are_not_guessed(stream: Stream) -> None:
    found = stream.log.find("order", "shop-order-5")
    assert found is not None
    mended = {**found[1].current, "items": [{"sku": "s", "quantity": 1, "unitPrice": 1}]}
    made = envelope("somebody", "1", mended, found[1].current)
    stream.log.commit([Record("changelog.order", b"shop-guest-1", encode(made))], None, "")
    assert stream.commit(("c", "order_items", None, item_row(5, 2, 20))) == []
    assert stream.service.mapper.unknown == 1
    ((_, _, current),) = stream.snapshot(("customers", customer(1)), ("orders", ORDER), ("order_items", ITEM))
    assert [one["line"] for one in current["items"]] == [1]


def test_a_value_that_the_database_did_not_send_stays(stream: Stream) -> None:
    long = customer(1, last_name="x" * 9000)
    stream.commit(("u", "customers", customer(1), long))
    ((_, _, current),) = stream.commit(("u", "customers", long, {**long, "last_name": UNAVAILABLE, "country": "FR"}))
    assert (current["lastName"], current["country"]) == ("x" * 9000, "FR")
    unsent = customer(1, last_name=UNAVAILABLE)
    ((_, _, current),) = stream.commit(("u", "customers", unsent, {**unsent, "country": "DE"}))
    assert (current["lastName"], current["country"]) == ("x" * 9000, "DE")


def test_tables_that_nobody_mapped_are_counted_and_passed_over(stream: Stream) -> None:
    written = stream.commit(("c", "invoices", None, {"n": 1}), ("c", "customers", None, customer(2)))
    assert [key for key, _, _ in written] == ["shop-guest-2"]
    assert stream.commit(("t", "invoices", None, None)) == []
    shown = [("invoices", {"n": 1}), ("orders", ORDER), ("order_items", ITEM)]
    assert stream.snapshot(*shown, ("customers", customer(1)), ("customers", customer(2))) == []


def test_the_mark_survives_its_way_through_text() -> None:
    mark = Mark("life", 3, 99, True, 5, 7)
    assert Mark.from_json(mark.to_json()) == mark


def test_bad_entities_have_a_topic_of_their_own(stream: Stream) -> None:
    written: list[Record] = []
    commit = stream.log.commit

    def spied(records: list[Record], offset: int | None, mark: str) -> None:
        written.extend(records)
        commit(records, offset, mark)

    stream.log.commit = spied  # type: ignore[method-assign]
    stream.commit(("u", "orders", ORDER, {**ORDER, "currency": None}))
    stream.commit(("u", "orders", {**ORDER, "currency": None}, ORDER))
    kept = [(record.key, record.value is None) for record in written if record.topic == BAD_TOPIC]
    assert kept == [(b"order/shop-order-5", False), (b"order/shop-order-5", True)]
