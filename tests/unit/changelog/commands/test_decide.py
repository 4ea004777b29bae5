"""What commands lead to, and what is said against them: a pure function of command and state."""

import json
from typing import Any

import pytest

from changelog.commands.decide import MAX_REASONS, Command, digest_of
from changelog.commands.outcome import First, Place, parse_outcome
from changelog.commands.schema import COMMANDS, schema, violations
from changelog.validation import check
from tests.unit.changelog.commands.state import (
    AT,
    GUEST,
    ITEMS,
    ORDER,
    answered,
    cancel,
    change,
    codes,
    command,
    guest,
    order,
    place,
    written,
)  # fmt: skip

pytestmark = pytest.mark.unit

PROVENANCE = {"apiVersion": "1", "serviceName": "commands", "identifier": "c1"}


def test_an_order_that_is_placed_is_an_order_and_an_event() -> None:
    made = answered(place(country="GB", sessionRef="s-1"), guest())
    assert written(made) == [
        ("order", {"provenance": PROVENANCE, "current": {
            "ref": "o1", "guestRef": "g1", "status": "PLACED", "currency": "GBP", "country": "GB", "total": 19.98,
            "items": ITEMS, "sessionRef": "s-1", "createdAt": AT, "modifiedAt": AT,
        }}),
        ("event", {"provenance": PROVENANCE, "current": {
            "ref": "c1-purchase", "guestRef": "g1", "type": "PURCHASE", "channel": "WEB", "sessionRef": "s-1",
            "createdAt": AT,
        }}),
    ]  # fmt: skip
    outcome = made.outcome
    assert (outcome.status, outcome.id, outcome.guest, outcome.command) == ("accepted", "c1", "g1", "place-order")


def test_a_change_takes_the_original_from_what_the_log_last_said() -> None:
    made = answered(change(status="PAID", country="FR"), order(country="GB"))
    before = ORDER | {"country": "GB"}
    after = before | {"status": "PAID", "country": "FR", "modifiedAt": AT}
    assert written(made) == [("order", {"provenance": PROVENANCE, "current": after, "original": before})]


def test_an_order_that_is_cancelled_is_an_order_and_an_event() -> None:
    made = answered(cancel(), order(status="PAID", sessionRef="s-1"))
    assert [(entity, envelope["current"].get("status")) for entity, envelope in written(made)] == [
        ("order", "CANCELLED"), ("event", None),
    ]  # fmt: skip
    event = written(made)[1][1]["current"]
    assert (event["ref"], event["type"], event["channel"], event["sessionRef"]) == (
        "c1-cancel",
        "CANCEL",
        "MOBILE",
        "s-1",
    )


def test_a_guest_is_updated_and_with_create_made() -> None:
    made = answered(command("update-guest", set={"email": None, "country": "GB"}), guest())
    after = GUEST | {"email": None, "country": "GB", "modifiedAt": AT}
    assert written(made) == [("guest", {"provenance": PROVENANCE, "current": after, "original": GUEST})]
    made = answered(command("update-guest", set={"email": "a@b"}, create=True))
    assert written(made)[0][1]["current"] == {"ref": "g1", "email": "a@b", "createdAt": AT, "modifiedAt": AT}
    assert "original" not in written(made)[0][1]


@pytest.mark.parametrize("same", [
    (change(status="PLACED", total=19.980), order()),
    (change(items=[{"sku": "s1", "quantity": 2.0, "unitPrice": 9.990}]), order()),
    (command("update-guest", set={"email": "ada@example.com"}, create=True), guest()),
])  # fmt: skip
def test_what_is_so_already_is_accepted_and_nothing_is_written(same: tuple[Command, Any]) -> None:
    made = answered(*same)
    assert (codes(made), made.outputs) == ([], ())


@pytest.mark.parametrize(("made", "versions", "expected"), [
    (place(), [], ["unknown-guest"]),
    (place(), [guest(), order()], ["order-exists"]),
    (place(), [guest(), order(guestRef="g2")], ["other-guest"]),
    (place(total=20), [guest()], ["total"]),
    (place(total=20), [order(guestRef="g2")], ["unknown-guest", "other-guest", "total"]),
    (place(currency="gbp", total="x"), [guest()], ["schema", "schema"]),
    (place(items=[]), [guest()], ["schema"]),
    (place(items=[{"sku": "s", "quantity": 0, "unitPrice": 1}], total=0), [guest()], ["schema"]),
    (place(status="PAID"), [guest()], ["schema"]),
    (place(note="x"), [guest()], ["schema"]),
    (change(status="PAID"), [], ["unknown-order"]),
    (change(status="PAID"), [order(guestRef="g2")], ["other-guest"]),
    (change(status="PAID"), [order(service="shop")], ["other-writer"]),
    (change(status="PAID"), [order(service="old-shop")], []),
    (change(expected=7, status="PAID"), [order(offset=7)], []),
    (change(expected=6, status="PAID"), [order(offset=7)], ["wrong-version"]),
    (change(expected=6, status="DELIVERED", total=1), [order(service="shop")],
     ["other-writer", "wrong-version", "wrong-status", "total"]),
    (change(status="SHIPPED"), [order()], ["wrong-status"]),
    (change(status="PLACED"), [order(status="PAID")], ["wrong-status"]),
    (change(status="DELIVERED"), [order(status="SHIPPED")], []),
    (change(status="CANCELLED"), [order()], ["schema"]),
    (change(country="FR"), [order(status="PAID")], []),
    (change(country="FR"), [order(status="SHIPPED")], ["closed"]),
    (change(country="FR"), [order(status="CANCELLED")], ["closed"]),
    (change(status="DELIVERED", country="FR"), [order(status="SHIPPED")], ["closed"]),
    (change(status="PAID"), [order(status="DELIVERED")], ["wrong-status"]),
    (change(items=[{"sku": "s2", "quantity": 1, "unitPrice": 5}]), [order()], ["total"]),
    (change(items=[{"sku": "s2", "quantity": 1, "unitPrice": 5}], total=5), [order()], []),
    (change(status="PAID"), [order(total=25)], []),
    (change(), [order()], ["schema"]),
    (cancel(), [], ["unknown-order"]),
    (cancel(), [order(status="SHIPPED")], ["closed"]),
    (cancel(), [order(status="CANCELLED")], ["closed"]),
    (cancel(expectedVersion=1), [order(guestRef="g1", service="shop", status="DELIVERED")],
     ["other-writer", "wrong-version", "closed"]),
    (command("update-guest", set={"email": "a"}), [], ["unknown-guest"]),
    (command("update-guest", set={"email": "a"}, expectedVersion=3, create=True), [], ["wrong-version"]),
    (command("update-guest", set={"email": "a"}), [guest(service="shop")], ["other-writer"]),
    (command("update-guest", set={}), [guest()], ["schema"]),
    (command("update-guest", key="g2", set={"email": "a"}), [guest()], ["wrong-key"]),
    (command("update-guest", key=None, set={"email": "a"}, id=""), [guest()], ["schema", "wrong-key"]),
])  # fmt: skip
def test_all_that_speaks_against_a_command_is_told_at_once(
    made: Command, versions: list[Any], expected: list[str]
) -> None:
    found = answered(made, *versions)
    assert codes(found) == expected
    assert all(reason.message for reason in found.outcome.reasons)


@pytest.mark.parametrize(("value", "code", "id_"), [
    (None, "empty", None),
    (b"", "empty", None),
    (b"{", "not-json", None),
    (b"\xff\xfe", "not-json", None),
    (b"[" * 5000, "not-json", None),
    (b"[]", "schema", None),
    (b"7", "schema", None),
    (b"{}", "schema", None),
    (b'{"id": 5}', "schema", None),
    (b'{"id": "c9"}', "schema", "c9"),
    (json.dumps({"id": "x" * 201}).encode(), "schema", None),
    (b'{"id": "c1", "guestRef": "g1", "set": {"email": "\\ud800"}}', "not-json", None),
    (b'{"a": ' * 500 + b"1" + b"}" * 500, "schema", None),
])  # fmt: skip
def test_a_bad_record_has_an_outcome_that_names_where_it_was(value: bytes | None, code: str, id_: str | None) -> None:
    where = Place("command.update-guest", 2, 41)
    found = answered(Command("update-guest", where, 0, b"g1", value))
    assert codes(found)[0] == code
    assert (found.outcome.id, found.outcome.source, found.outcome.command) == (id_, where, "update-guest")


def test_an_outcome_is_small_whatever_the_command_is() -> None:
    """One that Kafka did not take would stop the service, again and again."""
    huge = "x" * 3_000_000
    made = command("update-guest", key=huge, id=huge, guestRef=huge, set={huge: huge})
    for one in (made, command("cancel-order", key=huge, orderRef=huge), made._replace(value=huge.encode())):
        outcome = answered(one, guest()).outcome
        assert outcome.reasons
        assert len(outcome.encode()) < 100_000


def test_reasons_are_many_and_not_endless() -> None:
    found = answered(place(items=[{"sku": ""}] * 400), guest())
    assert len(found.outcome.reasons) == MAX_REASONS + 1
    assert "more" in found.outcome.reasons[-1].message


@pytest.mark.parametrize("total", ["9007199254740993.01", "0.1e1", "1.00005"])
def test_money_keeps_its_digits(total: str) -> None:
    value = place().value or b""
    text = value.replace(b"19.98", total.encode()).replace(b'"quantity": 2', b'"quantity": 1')
    found = answered(place()._replace(value=text.replace(b"9.99", total.encode())), guest())
    if total.startswith("9007"):
        assert codes(found) == ["schema", "schema"], "beyond what money can be"
    else:
        assert codes(found) == []
        assert b'"total":' + {"0.1e1": b"1", "1.00005": b"1.00005"}[total] in found.outputs[0].value


def test_the_same_id_again_is_answered_by_the_first_outcome() -> None:
    made = place()
    first = answered(made, guest()).outcome
    assert first.digest == digest_of(made.value)
    again = answered(made._replace(source=Place("command.place-order", 1, 99)), first=first)
    assert (codes(again), again.outputs) == ([], ())
    assert again.outcome.repeats == First(first.source, True)
    assert again.outcome.source.offset == 99
    other = answered(change(status="PAID"), order(), first=first)
    assert other.outputs == ()
    assert other.outcome.repeats == First(first.source, False)
    assert (other.outcome.status, other.outcome.command) == ("accepted", "change-order")


def test_a_rejection_spends_the_id_too() -> None:
    first = answered(place(total=1), guest()).outcome
    again = answered(place(), guest(), first=first)
    assert codes(again) == ["total"]
    assert again.outcome.repeats == First(first.source, False)


@pytest.mark.parametrize(
    "made", [place(), cancel(), change(status="PAID"), command("update-guest", set={"country": "X"})]
)
def test_what_is_written_is_valid_for_the_log(made: Command) -> None:
    found = answered(made, guest(), *([] if made.name == "place-order" else [order()]))
    assert found.outputs
    for output in found.outputs:
        assert check(output.entity, b"g1", output.value) == (None, "commands", "c1")


def test_an_order_that_the_log_would_not_take_is_rejected() -> None:
    big = [{"sku": "s" * 1000, "quantity": 1, "unitPrice": 1}] * 9000
    assert codes(answered(place(items=big, total=9000), guest())) == ["unfit"]


def test_outcomes_are_read_back_as_they_were() -> None:
    made = answered(place(total=1), guest()).outcome
    for outcome in (made, made.again("cancel-order", Place("command.cancel-order", 3, 8), "other")):
        assert parse_outcome(outcome.encode()) == outcome


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_is_and_takes_nothing_that_it_does_not_know(name: str) -> None:
    assert schema(name)["title"] == name
    assert schema(name)["description"]
    assert any("unexpected" in text for text in violations(name, {"id": "c", "guestRef": "g", "expectedVerison": 1}))
