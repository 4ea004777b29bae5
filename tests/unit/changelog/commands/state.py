"""A state in memory, and commands to meet it."""

import json
from typing import Any

from changelog.commands.decide import Answer, Command, answer
from changelog.commands.outcome import Outcome, Place
from changelog.exact import parse
from changelog.latest import Version

TIME = 1_772_359_200_123
"""2026-03-01T10:00:00.123Z"""

AT = "2026-03-01T10:00:00.123Z"

ITEMS = [{"sku": "s1", "quantity": 2, "unitPrice": 9.99}]

ORDER: dict[str, Any] = {
    "ref": "o1", "guestRef": "g1", "status": "PLACED", "currency": "GBP", "total": 19.98, "items": ITEMS,
    "createdAt": "2026-01-01T00:00:00.000Z", "modifiedAt": "2026-01-01T00:00:00.000Z",
}  # fmt: skip

GUEST: dict[str, Any] = {
    "ref": "g1", "email": "ada@example.com", "createdAt": "2026-01-01T00:00:00.000Z",
    "modifiedAt": "2026-01-01T00:00:00.000Z",
}  # fmt: skip


class Memory:
    """What the log last said, put in by hand."""

    def __init__(self, *versions: tuple[str, str, Version]) -> None:
        self.versions = {
            (entity, guest, version.current["ref"]): version._replace(
                current=parse(json.dumps(version.current).encode())
            )
            for entity, guest, version in versions
        }

    def get(self, entity: str, guest: str, ref: str) -> Version | None:
        return self.versions.get((entity, guest, ref))

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None:
        return next(
            ((guest, version) for (of, guest, name), version in self.versions.items() if (of, name) == (entity, ref)),
            None,
        )


def order(service: str = "commands", offset: int = 7, **fields: Any) -> tuple[str, str, Version]:
    """Order o1 of guest g1."""
    current = ORDER | fields
    return "order", current["guestRef"], Version(current, offset, service, "before", 0)


def guest(ref: str = "g1", service: str = "commands", offset: int = 3) -> tuple[str, str, Version]:
    """A guest."""
    return "guest", ref, Version(GUEST | {"ref": ref}, offset, service, "before", 0)


def command(name: str, offset: int = 0, key: str | None = "g1", **told: Any) -> Command:
    """A command of guest g1, with the id c1."""
    value = json.dumps({"id": "c1", "guestRef": "g1"} | told).encode()
    place = Place(f"command.{name}", 1, offset)
    return Command(name, place, TIME, None if key is None else key.encode(), value)


def place(**fields: Any) -> Command:
    """A command that places order o1."""
    body = {"ref": "o1", "currency": "GBP", "total": 19.98, "items": ITEMS} | fields
    return command("place-order", channel="WEB", order=body)


def change(expected: int | None = None, **fields: Any) -> Command:
    """A command that changes order o1."""
    seen: dict[str, Any] = {} if expected is None else {"expectedVersion": expected}
    return command("change-order", orderRef="o1", change=fields, **seen)


def cancel(**told: Any) -> Command:
    """A command that cancels order o1."""
    return command("cancel-order", **{"orderRef": "o1", "channel": "MOBILE"} | told)


def answered(made: Command, *versions: tuple[str, str, Version], first: Outcome | None = None) -> Answer:
    """The answer to a command in a state."""
    return answer(made, Memory(*versions), lambda _: first, ("commands", "old-shop"))


def codes(made: Answer) -> list[str]:
    """The codes of the reasons; a rejected command leads to nothing."""
    assert (made.outcome.status == "rejected") == bool(made.outcome.reasons)
    assert not (made.outcome.reasons and made.outputs)
    return [reason.code for reason in made.outcome.reasons]


def written(made: Answer) -> list[tuple[str, dict[str, Any]]]:
    """(entity, envelope) of each change."""
    return [(output.entity, json.loads(output.value)) for output in made.outputs]
