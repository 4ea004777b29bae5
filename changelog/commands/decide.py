"""What a command leads to: a pure function of the command, of what the log last said, and of the ids already answered.

The same command in the same state gives the same answer, times included: they are the broker's time of the command.
All reasons against a command are told at once; only where its form is wrong nothing further is looked at.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import orjson

from changelog.commands.outcome import Outcome, Place, Reason
from changelog.commands.schema import violations
from changelog.envelope import Entity, encode, envelope, timestamp
from changelog.erased import NOBODY, Erased
from changelog.exact import parse
from changelog.latest import Version
from changelog.topics import MAX_RECORD_BYTES
from changelog.validation import check

SERVICE = "commands"
"""The writing service of what commands lead to. The identifier of its changes is the command's id."""

NEXT_STATUS = {"PLACED": "PAID", "PAID": "SHIPPED", "SHIPPED": "DELIVERED"}
OPEN = ("PLACED", "PAID")
"""What is in an order can be changed, and the order cancelled, while it has one of these."""

MAX_ID = 200
MAX_REF = 500
MAX_REASONS = 50
MAX_TEXT = 1000

_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)
_PLACES = Decimal("0.0001")


class State(Protocol):
    """What the log last said; :class:`changelog.said.Said` is one."""

    def get(self, entity: str, guest: str, ref: str) -> Version | None:
        """The newest version of an entity of a guest; None if there is none, or it is deleted."""

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None:
        """The same whoever the guest is, and who."""


class Command(NamedTuple):
    """A record of a command's topic. ``time``: the broker's, in ms since 1970."""

    name: str
    source: Place
    time: int
    key: bytes | None
    value: bytes | None


class Output(NamedTuple):
    """A change to be written: the entity after it, and the envelope as bytes."""

    entity: str
    guest: str
    identifier: str
    current: Entity
    value: bytes


@dataclass(frozen=True)
class Answer:
    """The outcome, as yet without the places of its records, and what has to be written with it."""

    outcome: Outcome
    outputs: tuple[Output, ...] = ()


def answer(
    command: Command,
    state: State,
    first: Callable[[str], Outcome | None],
    own: Collection[str] = (SERVICE,),
    erased: Erased = NOBODY,
) -> Answer:
    """Answer one command. Never raises for bad input.

    ``first``: the outcome of the first command with an id, if there was one. ``own``: the services whose entities may
    be changed; an entity that another one wrote last is not ours to change. ``erased``: guests of whom nothing is
    written any more; their commands are rejected.
    """
    digest = digest_of(command.value)
    told, reasons = _read(command)
    id_, guest = _text(told.get("id"), MAX_ID), _text(told.get("guestRef"), MAX_REF)
    if erased.has(guest) or erased.has(command.key):
        reason = Reason("erased", "this guest is erased: nothing of theirs is written any more")
        return Answer(Outcome(command.name, None, None, "rejected", (reason,), (), command.source, digest))
    before = first(id_) if id_ is not None else None
    if before is not None:
        return Answer(before.again(command.name, command.source, digest))
    outputs: list[Output] = []
    if not reasons:
        case = _Case(parse(command.value or b""), command.time, state, own)
        _RULES[command.name](case)
        outputs, reasons = case.outputs, case.reasons + _unfit(case.outputs)
    outcome = Outcome(
        command.name, id_, guest, "rejected" if reasons else "accepted", tuple(reasons), (), command.source, digest
    )
    return Answer(outcome, () if reasons else tuple(outputs))


def digest_of(value: bytes | None) -> str:
    """16 hex digits that stand for the bytes of a command."""
    return blake2b(value or b"", digest_size=8).hexdigest()


def _text(value: object, most: int) -> str | None:
    """A text that may be repeated in an outcome."""
    return value if isinstance(value, str) and 0 < len(value) <= most else None


def _read(command: Command) -> tuple[Mapping[str, Any], list[Reason]]:
    """What a command says, and what is wrong with its form."""
    if not command.value:
        return {}, [Reason("empty", f"a command without a value at {command.source}")]
    try:
        told = orjson.loads(command.value)
    except orjson.JSONDecodeError as error:
        return {}, [Reason("not-json", f"not JSON: {error}; at {command.source}")]
    wrong = violations(command.name, told)
    reasons = [Reason("schema", text) for text in wrong[:MAX_REASONS]]
    if len(wrong) > MAX_REASONS:
        reasons.append(Reason("schema", f"and {len(wrong) - MAX_REASONS} more"))
    if not isinstance(told, dict):
        return {}, reasons
    guest = _text(told.get("guestRef"), MAX_REF)
    if guest is not None and command.key != guest.encode():
        reasons.append(
            Reason("wrong-key", f"the key {(command.key or b'')[:MAX_REF]!r} is not the guest's ref {guest!r}")
        )
    return told, reasons


def _unfit(outputs: list[Output]) -> list[Reason]:
    """What the log would not take: the last look before anything is written."""
    reasons = []
    for output in outputs:
        wrong = check(output.entity, output.guest.encode(), output.value).reason
        if wrong is None and len(output.value) > MAX_RECORD_BYTES // 2:
            wrong = f"{len(output.value)} bytes are more than a change can have"
        if wrong is not None:
            reasons.append(Reason("unfit", f"the {output.entity} that it leads to is not valid: {wrong}"))
    return reasons


class _Case:
    """A well-formed command and the state it meets; collects what speaks against it and what it leads to."""

    def __init__(self, told: Mapping[str, Any], time: int, state: State, own: Collection[str]) -> None:
        self.told, self.state = told, state
        self.id: str = told["id"]
        self.guest: str = told["guestRef"]
        self.at = timestamp(datetime.fromtimestamp(time / 1000, UTC))
        self.reasons: list[Reason] = []
        self.outputs: list[Output] = []
        self._own = own

    def reject(self, code: str, message: str) -> None:
        self.reasons.append(Reason(code, message if len(message) <= MAX_TEXT else message[:MAX_TEXT] + "…"))

    def order(self) -> Version | None:
        """The order that the command is about; what speaks against touching it is noted."""
        ref = self.told["orderRef"]
        found = self.state.get("order", self.guest, ref)
        if found is None:
            if self.state.find("order", ref):
                self.reject("other-guest", f"order {ref!r} is another guest's")
            else:
                self.reject("unknown-order", f"there is no order {ref!r}")
            return None
        self.may_change("order", found)
        return found

    def may_change(self, entity: str, found: Version) -> None:
        """Note it where an entity is not ours, or is not as the sender saw it."""
        ref, expected = found.current["ref"], self.told.get("expectedVersion")
        if found.service not in self._own:
            self.reject("other-writer", f"{entity} {ref!r} is written by {found.service}, which alone may change it")
        if expected is not None and expected != found.offset:
            stands = "has just been changed" if found.offset < 0 else f"is at version {found.offset}"
            self.reject("wrong-version", f"{entity} {ref!r} {stands}, expected was {expected}")

    def total(self, order: Entity) -> None:
        """Note it where an order's total is not what its items make."""
        sum_ = sum(
            (_money(_money(item["quantity"]) * _money(item["unitPrice"])) for item in order["items"]), Decimal(0)
        )
        if _money(order["total"]) != sum_:
            self.reject("total", f"the total is {order['total']}, and the items make {sum_.normalize():f}")

    def change(self, entity: str, current: Entity, original: Entity | None = None) -> None:
        """Lead to a change, unless it would change nothing."""
        if original is not None and current == original:
            return
        times = {"modifiedAt": self.at} if original is not None else {"createdAt": self.at, "modifiedAt": self.at}
        self.write(entity, current | times, original)

    def event(self, type_: str, session: str | None) -> None:
        """Lead to an event of the guest's."""
        event = {
            "ref": f"{self.id}-{type_.lower()}", "guestRef": self.guest, "type": type_,
            "channel": self.told["channel"], "createdAt": self.at,
        }  # fmt: skip
        self.write("event", event | ({"sessionRef": session} if session else {}))

    def write(self, entity: str, current: Entity, original: Entity | None = None) -> None:
        value = encode(envelope(SERVICE, self.id, current, original))
        self.outputs.append(Output(entity, self.guest, self.id, current, value))


def _money(number: Decimal | int) -> Decimal:
    return Decimal(number).quantize(_PLACES, context=_EXACT)


def _place_order(case: _Case) -> None:
    order = case.told["order"]
    if case.state.get("guest", case.guest, case.guest) is None:
        case.reject("unknown-guest", f"there is no guest {case.guest!r}")
    found = case.state.find("order", order["ref"])
    if found is not None and found[0] == case.guest:
        case.reject("order-exists", f"order {order['ref']!r} is there already")
    elif found is not None:
        case.reject("other-guest", f"order {order['ref']!r} is another guest's")
    case.total(order)
    case.change("order", {"ref": order["ref"], "guestRef": case.guest, "status": "PLACED", **order})
    case.event("PURCHASE", order.get("sessionRef"))


def _change_order(case: _Case) -> None:
    change, found = case.told["change"], case.order()
    if found is None:
        return
    status, wanted = found.current["status"], change.get("status")
    changed = found.current | change
    if wanted is not None and wanted not in (status, NEXT_STATUS.get(status)):
        step = f"only {NEXT_STATUS[status]} follows" if status in NEXT_STATUS else "nothing follows"
        case.reject("wrong-status", f"the order is {status}: {step}, not {wanted}")
    if status not in OPEN and changed | {"status": status} != found.current:
        case.reject("closed", f"the order is {status}: what is in it can no longer be changed")
    if "items" in change or "total" in change:
        case.total(changed)
    case.change("order", changed, found.current)


def _cancel_order(case: _Case) -> None:
    found = case.order()
    if found is None:
        return
    if found.current["status"] not in OPEN:
        case.reject("closed", f"the order is {found.current['status']}: it can no longer be cancelled")
    case.change("order", found.current | {"status": "CANCELLED"}, found.current)
    case.event("CANCEL", found.current.get("sessionRef"))


def _update_guest(case: _Case) -> None:
    found = case.state.get("guest", case.guest, case.guest)
    if found is not None:
        case.may_change("guest", found)
        case.change("guest", found.current | case.told["set"], found.current)
    elif not case.told.get("create"):
        case.reject("unknown-guest", f"there is no guest {case.guest!r}; create makes one")
    else:
        if case.told.get("expectedVersion") is not None:
            case.reject("wrong-version", f"guest {case.guest!r} is not there, expected was version "
                        f"{case.told['expectedVersion']}")  # fmt: skip
        case.change("guest", {"ref": case.guest, **case.told["set"]})


_RULES: Mapping[str, Callable[[_Case], None]] = {
    "place-order": _place_order,
    "change-order": _change_order,
    "cancel-order": _cancel_order,
    "update-guest": _update_guest,
}
