"""What one transaction holds: the answers to some commands, decided one after another. Knows no Kafka."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from changelog.commands.answered import Answered
from changelog.commands.decide import MAX_REF, SERVICE, Answer, Command, Output, State, answer, digest_of
from changelog.commands.outcome import Outcome, Place
from changelog.erased import NOBODY, Erased
from changelog.latest import Version
from changelog.positions import Vector
from runtime.settings import topic_of

ENTITIES = ("guest", "order")
"""What commands are decided by."""


class Log(State, Protocol):
    """What the log last said, as far as it can be read; :class:`changelog.said.Said` is one."""

    def catch_up(self) -> None:
        """Read on."""

    def reached(self) -> Vector:
        """Up to where it is read."""


class Written(NamedTuple):
    """A version that we wrote and that the log may not show yet; an offset of -1: its transaction is not over."""

    guest: str
    version: Version


class Known:
    """What the log last said, and on top what we wrote ourselves since: a record can be read only when every
    transaction before it in its partition is over, whosoever that is."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._written: dict[tuple[str, str], Written] = {}

    def get(self, entity: str, guest: str, ref: str) -> Version | None:
        """See :class:`changelog.commands.decide.State`."""
        own = self._written.get((entity, ref))
        if own is not None and own.guest == guest:
            return own.version
        return self._log.get(entity, guest, ref)

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None:
        """See :class:`changelog.commands.decide.State`."""
        return self._written.get((entity, ref)) or self._log.find(entity, ref)

    def write(self, output: Output, place: Place | None = None) -> None:
        """Note what is about to be written, and once it is written, where."""
        if output.entity in ENTITIES:
            partition, offset = (place.partition, place.offset) if place else (-1, -1)
            version = Version(output.current, offset, SERVICE, output.identifier, partition)
            self._written[output.entity, output.current["ref"]] = Written(output.guest, version)

    def catch_up(self) -> None:
        """Read on, and forget of our own what the log shows now."""
        self._log.catch_up()
        reached = self._log.reached()
        for (entity, ref), (_, version) in list(self._written.items()):
            if reached[topic_of(entity)][version.partition] > version.offset:
                del self._written[entity, ref]


class Transaction:
    """The answers to ``commands``, in their order; a command that was answered already is left out.

    ``outputs`` are to be written first. Then :meth:`outcomes`, which name where they are; then, once all of it is
    committed, :meth:`settle`. One that is not committed is forgotten together with ``known`` and ``answered``.
    """

    def __init__(
        self,
        commands: Iterable[Command],
        known: Known,
        answered: Answered,
        own: Collection[str] = (SERVICE,),
        erased: Erased = NOBODY,
    ) -> None:
        self._known, self._answered = known, answered
        self._answers: list[Answer] = []
        self._keys: list[bytes | None] = []
        self._new: dict[str, int] = {}
        for command in commands:
            if answered.has(command.source, digest_of(command.value)):
                continue  # how far was read was forgotten, its outcome was not
            made = answer(command, known, self._first, own, erased)
            if made.outcome.id is not None and made.outcome.repeats is None:
                self._new[made.outcome.id] = len(self._answers)
            self._answers.append(made)
            named = len(command.key or b"") <= 4 * MAX_REF and not erased.has(command.key)
            self._keys.append(command.key if named else None)
            for output in made.outputs:
                known.write(output)

    def _first(self, id_: str) -> Outcome | None:
        number = self._new.get(id_)
        return self._answered.first(id_) if number is None else self._answers[number].outcome

    @property
    def outputs(self) -> list[Output]:
        """The changes that all of them lead to."""
        return [output for made in self._answers for output in made.outputs]

    def outcomes(self, places: Sequence[Place]) -> list[tuple[bytes | None, Outcome]]:
        """The outcomes, each with the key of its command, if that is one. ``places``: where :attr:`outputs` are."""
        at, whole = iter(places), list[Outcome]()
        for made in self._answers:
            outcome = made.outcome
            if outcome.repeats is None:
                outcome = replace(outcome, records=tuple(next(at) for _ in made.outputs))
            elif outcome.id in self._new:  # it repeats one that is answered here
                outcome = replace(outcome, records=whole[self._new[outcome.id]].records)
            whole.append(outcome)
        return list(zip(self._keys, whole, strict=True))

    def settle(self, places: Sequence[Place]) -> None:
        """It is committed: know what it wrote and what it answered."""
        for output, place in zip(self.outputs, places, strict=True):
            self._known.write(output, place)
        self._answered.add(outcome for _, outcome in self.outcomes(places))
