"""Commands that ask for a change: validated by the service ``commands``, and then part of the log."""

import json
import uuid
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from changelog.commands.client import await_outcome, send
from changelog.commands.outcome import Outcome
from changelog.exact import parse
from changelog.sources.load import opened
from runtime.errors import TerminalError
from runtime.settings import Settings

Command = dict[str, Any]

File = Annotated[str | None, typer.Option(help="the command as JSON; - is standard input")]
Id = Annotated[
    str | None,
    typer.Option("--id", help="tells it from every other; the same again does nothing twice; default a new one"),
]
Guest = Annotated[str | None, typer.Option(help="the guest's ref")]
Order = Annotated[str | None, typer.Option(help="the order's ref")]
Expected = Annotated[
    int | None, typer.Option(help="offset of the version you saw: rejected if the log has said more of it since")
]
Items = Annotated[list[str] | None, typer.Option("--item", help="SKU:QUANTITY:PRICE, repeatable")]
Total = Annotated[str | None, typer.Option(help="default: what the items make")]
Currency = Annotated[str | None, typer.Option(help="three letters")]
Country = Annotated[str | None, typer.Option()]
Session = Annotated[str | None, typer.Option(help="the session's ref")]
Channel = Annotated[str | None, typer.Option(help="where the guest acts: WEB (default), MOBILE, EMAIL, CALL_CENTER")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="wait for the outcome; exit status 1 if it is rejected")]
Timeout = Annotated[float, typer.Option(help="seconds to wait")]
AsJson = Annotated[bool, typer.Option("--json", help="for machines")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    command = typer.Typer(
        no_args_is_help=True,
        help="Ask for a change. A command goes to the topic command.<name>; the service `commands` compares it with "
        "what the log last said, and writes the changes that it leads to and its outcome (command.outcomes) in one "
        "transaction. A rejection tells all reasons. An id is spent by its first outcome: sent again, it is answered "
        "by that one, and does nothing. Commands of different kinds are not in order with each other: wait for one "
        "before you send the next.",
    )
    for one in (place_order, change_order, cancel_order, update_guest):
        command.command()(one)
    app.add_typer(command, name="command")


def place_order(
    file: File = None,
    id_: Id = None,
    guest: Guest = None,
    order: Order = None,
    item: Items = None,
    total: Total = None,
    currency: Currency = None,
    country: Country = None,
    session: Session = None,
    channel: Channel = None,
    wait: Wait = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """A guest orders: an order with the status PLACED, and an event PURCHASE.

    Rejected: a guest who is not there, an order that is there already, a total that is not what the items make.

    Example: anabranch command place-order --guest g-1 --order o-1 --currency GBP --item sku-7:2:9.99 --wait

    As a file: {"id": "…", "guestRef": "g-1", "channel": "WEB", "order": {"ref": "o-1", "currency": "GBP",
    "total": 19.98, "items": [{"sku": "sku-7", "quantity": 2, "unitPrice": 9.99}]}}
    """
    command = _begin(file, {"id": str(uuid.uuid4()), "channel": "WEB"})
    command |= _present({"id": id_, "guestRef": guest, "channel": channel})
    given = {"ref": order, "sessionRef": session, "currency": currency, "country": country, **_contents(item, total)}
    command["order"] = _filled(command.get("order", {}), given)
    _ask("place-order", command, wait, timeout, as_json)


def change_order(
    file: File = None,
    id_: Id = None,
    guest: Guest = None,
    order: Order = None,
    expected_version: Expected = None,
    status: Annotated[str | None, typer.Option(help="the next one of PLACED, PAID, SHIPPED, DELIVERED")] = None,
    item: Items = None,
    total: Total = None,
    currency: Currency = None,
    country: Country = None,
    session: Session = None,
    wait: Wait = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Fields of an order get other values; its items as a whole. What is given already changes nothing.

    Rejected: an order that is not there, another guest's, or another service's; what is in an order that is SHIPPED,
    DELIVERED or CANCELLED; a status that is not the next one; another version than the expected one; a wrong total.

    Example: anabranch command change-order --guest g-1 --order o-1 --status PAID --expected-version 17 --wait
    """
    command = _begin(file, {"id": str(uuid.uuid4())})
    command |= _present({"id": id_, "guestRef": guest, "orderRef": order, "expectedVersion": expected_version})
    given = {
        "status": status, "sessionRef": session, "currency": currency, "country": country, **_contents(item, total)
    }  # fmt: skip
    command["change"] = _filled(command.get("change", {}), given)
    _ask("change-order", command, wait, timeout, as_json)


def cancel_order(
    file: File = None,
    id_: Id = None,
    guest: Guest = None,
    order: Order = None,
    expected_version: Expected = None,
    channel: Channel = None,
    wait: Wait = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """An order is cancelled: its status becomes CANCELLED, and there is an event CANCEL.

    Rejected: as with change-order, and an order that is SHIPPED, DELIVERED or CANCELLED.

    Example: anabranch command cancel-order --guest g-1 --order o-1 --channel CALL_CENTER --wait
    """
    command = _begin(file, {"id": str(uuid.uuid4()), "channel": "WEB"})
    command |= _present({
        "id": id_, "guestRef": guest, "channel": channel, "orderRef": order, "expectedVersion": expected_version
    })  # fmt: skip
    _ask("cancel-order", command, wait, timeout, as_json)


def update_guest(
    file: File = None,
    id_: Id = None,
    guest: Guest = None,
    expected_version: Expected = None,
    first_name: Annotated[str | None, typer.Option()] = None,
    last_name: Annotated[str | None, typer.Option()] = None,
    email: Annotated[str | None, typer.Option()] = None,
    country: Country = None,
    create: Annotated[bool, typer.Option("--create", help="make a guest who is not there")] = False,
    wait: Wait = False,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Fields of a guest get other values; with --create, a guest who is not there is made.

    Rejected: a guest who is not there, or another service's; another version than the expected one.

    Example: anabranch command update-guest --guest g-1 --email ada@example.com --create --wait
    """
    command = _begin(file, {"id": str(uuid.uuid4())})
    command |= _present({"id": id_, "guestRef": guest, "expectedVersion": expected_version, "create": create or None})
    given = {"firstName": first_name, "lastName": last_name, "email": email, "country": country}
    command["set"] = _filled(command.get("set", {}), given)
    _ask("update-guest", command, wait, timeout, as_json)


def _begin(file: str | None, defaults: Command) -> Command:
    """What the file says, and what it does not, from ``defaults``."""
    told: Any = {}
    if file is not None:
        with opened(file) as lines:
            text = b"".join(lines)
        try:
            told = parse(text)
        except ValueError as error:
            raise TerminalError(f"{file}: not JSON: {error}") from error
        if not isinstance(told, dict):
            raise TerminalError(f'{file}: a command is an object, such as {{"id": …, "guestRef": …}}')
    return {**defaults, **told}


def _present(options: Command) -> Command:
    return {name: value for name, value in options.items() if value is not None}


def _filled(told: Any, given: Command) -> Any:
    """What the file says within a part of a command, and over it the options."""
    return {**told, **_present(given)} if isinstance(told, dict) else told


def _contents(items: list[str] | None, total: str | None) -> Command:
    """``items`` and ``total`` of an order, from options; the total is what the items make, unless it is given."""
    parsed = [_item(text) for text in items or ()]
    given = None if total is None else _number(total, "--total")
    if parsed and given is None:
        given = sum((item["quantity"] * item["unitPrice"] for item in parsed), Decimal(0))
    return {"items": parsed or None, "total": given}


def _item(text: str) -> Command:
    sku, _, numbers = text.partition(":")
    quantity, _, price = numbers.partition(":")
    if not (sku and quantity and price):
        raise TerminalError(f"--item {text!r} is not SKU:QUANTITY:PRICE, for example sku-7:2:9.99")
    return {"sku": sku, "quantity": _number(quantity, f"--item {text}"), "unitPrice": _number(price, f"--item {text}")}


def _number(text: str, where: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise TerminalError(f"{where}: {text!r} is no number") from None
    if not number.is_finite():
        raise TerminalError(f"{where}: {text!r} is no number")
    return number


def _ask(name: str, command: Command, wait: bool, timeout: float, as_json: bool) -> None:
    """Send, and say what became of it. Exit status 1 for a command that is rejected."""
    settings = Settings()
    sent = send(settings, name, command)
    if not wait:
        place = sent.place._asdict()
        typer.echo(
            json.dumps({"id": command["id"], "sent": place}) if as_json else f"sent: {sent.place}\nid: {command['id']}"
        )
        return
    outcome = await_outcome(settings, sent, timeout)
    typer.echo(json.dumps(outcome.to_json()) if as_json else described(outcome))
    if outcome.status == "rejected":
        raise typer.Exit(1)


def described(outcome: Outcome) -> str:
    """An outcome for people."""
    lines = [f"{outcome.status}: {outcome.command} {outcome.id}"]
    if outcome.repeats:
        content = "the same" if outcome.repeats.same_content else "another content, which was not looked at"
        lines.append(f"  the id was used before, at {outcome.repeats.source}, with {content}: nothing was done again")
    lines += [f"  {reason.message} ({reason.code})" for reason in outcome.reasons]
    lines += [f"  wrote {record}" for record in outcome.records]
    if outcome.status == "accepted" and not outcome.records:
        lines.append("  nothing had to change")
    return "\n".join(lines)
