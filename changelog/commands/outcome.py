"""The outcome of a command: one record of ``command.outcomes`` for each record of a command's topic."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import orjson

Status = Literal["accepted", "rejected"]


class Place(NamedTuple):
    """Where a record is in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}, offset {self.offset}"


class Reason(NamedTuple):
    """Why a command was rejected: a word for machines, a sentence for people."""

    code: str
    message: str


class First(NamedTuple):
    """The record whose id was the same and came before, and whether it said the same, byte for byte."""

    source: Place
    same_content: bool


@dataclass(frozen=True)
class Outcome:
    """What became of the command at ``source``.

    ``id`` and ``guest``: None where it names none. ``records``: the changes that it led to; none if it was rejected, or
    if nothing had to change. ``digest``: of its bytes. ``repeats``: the first command with its id, whose answer this
    is; nothing was done again.
    """

    command: str
    id: str | None
    guest: str | None
    status: Status
    reasons: tuple[Reason, ...]
    records: tuple[Place, ...]
    source: Place
    digest: str
    repeats: First | None = None

    def again(self, command: str, source: Place, digest: str) -> "Outcome":
        """The answer to the same id once more, in whatever command."""
        repeats = First(self.source, self.digest == digest)
        return replace(self, command=command, source=source, digest=digest, repeats=repeats)

    def to_json(self) -> dict[str, Any]:
        """As it is in the topic."""
        return {
            "command": self.command,
            "id": self.id,
            "guestRef": self.guest,
            "status": self.status,
            "reasons": [reason._asdict() for reason in self.reasons],
            "records": [record._asdict() for record in self.records],
            "source": self.source._asdict(),
            "digest": self.digest,
            **(
                {"repeats": {**self.repeats.source._asdict(), "sameContent": self.repeats.same_content}}
                if self.repeats
                else {}
            ),
        }

    def encode(self) -> bytes:
        """JSON as UTF-8 bytes."""
        return orjson.dumps(self.to_json())


def parse_outcome(value: bytes) -> Outcome:
    """Inverse of :meth:`Outcome.encode`. Raises ValueError or KeyError for anything else."""
    found = orjson.loads(value)
    repeats = found.get("repeats")
    return Outcome(
        found["command"],
        found["id"],
        found["guestRef"],
        found["status"],
        tuple(Reason(**reason) for reason in found["reasons"]),
        tuple(Place(**record) for record in found["records"]),
        Place(**found["source"]),
        found["digest"],
        First(Place(repeats["topic"], repeats["partition"], repeats["offset"]), repeats["sameContent"])
        if repeats
        else None,
    )
