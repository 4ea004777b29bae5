"""Commands on the command line: what options and files make, what is refused before it is sent, how outcomes read."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from changelog.commands.client import Sent
from changelog.commands.outcome import First, Outcome, Place, Reason
from infra import cli, commands_command
from infra.commands_command import described
from runtime.errors import TerminalError

pytestmark = pytest.mark.unit

PLACE = Place("command.place-order", 2, 7)


@pytest.fixture
def sent(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What would have been sent."""
    found: list[tuple[str, dict[str, Any]]] = []

    def send(_settings: object, name: str, command: dict[str, Any]) -> Sent:
        found.append((name, command))
        return Sent(PLACE, 0)

    monkeypatch.setattr(commands_command, "send", send)
    return found


def give(*words: str, stdin: str = "") -> str:
    done = CliRunner().invoke(cli.app, ["command", *words], input=stdin, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_options_make_a_command(sent: list[Any]) -> None:
    told = give("place-order", "--guest", "g", "--order", "o", "--currency", "GBP", "--item", "a:2:9.99", "--item",
                "b:1:0.02", "--id", "c1")  # fmt: skip
    assert "command.place-order/2, offset 7" in told
    items = [
        {"sku": "a", "quantity": Decimal(2), "unitPrice": Decimal("9.99")},
        {"sku": "b", "quantity": Decimal(1), "unitPrice": Decimal("0.02")},
    ]
    order = {"ref": "o", "currency": "GBP", "items": items, "total": Decimal("20.00")}
    assert sent == [("place-order", {"id": "c1", "channel": "WEB", "guestRef": "g", "order": order})]


def test_a_file_makes_a_command_and_options_come_on_top(sent: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "command.json"
    path.write_text('{"id": "c1", "guestRef": "g", "channel": "EMAIL", "orderRef": "o"}')
    give("cancel-order", "--file", str(path), "--expected-version", "4")
    give("cancel-order", "--file", str(path), "--channel", "MOBILE", "--guest", "h")
    give("update-guest", "--file", "-", "--create", stdin='{"guestRef": "g", "set": {"email": "a", "country": "GB"}}')
    (_, first), (_, second), (_, third) = sent
    assert first == {"id": "c1", "guestRef": "g", "channel": "EMAIL", "orderRef": "o", "expectedVersion": 4}
    assert (second["channel"], second["guestRef"]) == ("MOBILE", "h")
    assert len(third.pop("id")) == 36, "an id of its own"
    assert third == {"guestRef": "g", "set": {"email": "a", "country": "GB"}, "create": True}


def test_each_kind_has_its_options(sent: list[Any]) -> None:
    give("change-order", "--guest", "g", "--order", "o", "--status", "PAID", "--total", "7", "--id", "c")
    give("update-guest", "--guest", "g", "--first-name", "Ada", "--last-name", "L", "--email", "e", "--country", "GB",
         "--id", "c")  # fmt: skip
    assert sent == [
        ("change-order", {"id": "c", "guestRef": "g", "orderRef": "o", "change": {
            "status": "PAID", "total": Decimal(7)}}),
        ("update-guest", {"id": "c", "guestRef": "g", "set": {
            "firstName": "Ada", "lastName": "L", "email": "e", "country": "GB"}}),
    ]  # fmt: skip


@pytest.mark.parametrize("item", ["a", "a:1", "a:1:x", ":1:2", "a::2", "a:NaN:1"])
def test_an_item_that_makes_no_sense_is_refused(sent: list[Any], item: str) -> None:
    with pytest.raises(TerminalError, match="--item"):
        give("place-order", "--guest", "g", "--order", "o", "--currency", "GBP", "--item", item)
    assert sent == []


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_a_file_that_is_no_command_is_refused(sent: list[Any], tmp_path: Path, text: str) -> None:
    path = tmp_path / "command.json"
    path.write_text(text)
    with pytest.raises(TerminalError, match=r"command\.json"):
        give("cancel-order", "--file", str(path))
    assert sent == []


def test_a_command_whose_form_is_wrong_is_not_sent(home: Path) -> None:
    """There is no Kafka here: it is refused before anybody is asked."""
    with pytest.raises(TerminalError, match=r"was not sent: .*currency"):
        give("place-order", "--guest", "g", "--order", "o", "--item", "a:1:2")


def outcome(**fields: Any) -> Outcome:
    made: dict[str, Any] = {
        "command": "place-order", "id": "c1", "guest": "g", "status": "accepted", "reasons": (), "records": (),
        "source": PLACE, "digest": "0",
    }  # fmt: skip
    return Outcome(**made | fields)


def test_outcomes_read_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert described(outcome()).splitlines() == ["accepted: place-order c1", "  nothing had to change"]
    assert "wrote changelog.order/1, offset 4" in described(outcome(records=(Place("changelog.order", 1, 4),)))
    rejected = outcome(status="rejected", reasons=(Reason("total", "the total is 1"), Reason("closed", "it is closed")))
    assert described(rejected).splitlines()[1:] == ["  the total is 1 (total)", "  it is closed (closed)"]
    again = described(outcome(repeats=First(PLACE, False)))
    assert "used before" in again
    assert "another content" in again


@pytest.mark.parametrize(("status", "exit_code"), [("accepted", 0), ("rejected", 1)])
def test_the_exit_status_says_what_became_of_it(
    sent: list[Any], monkeypatch: pytest.MonkeyPatch, status: str, exit_code: int
) -> None:
    reasons = (Reason("total", "the total is 1"),) if status == "rejected" else ()
    found = outcome(status=status, reasons=reasons)
    monkeypatch.setattr(commands_command, "await_outcome", lambda *_: found)
    done = CliRunner().invoke(cli.app, ["command", "update-guest", "--guest", "g", "--email", "a", "--wait", "--json"])
    assert done.exit_code == exit_code
    assert json.loads(done.stdout) == found.to_json()
