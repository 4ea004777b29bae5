"""The laws of commands, whatever is sent again, killed, forgotten or not yet to be read: chains hold, every command has
one outcome, no id has a second effect, and the state is what the accepted commands make."""

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.commands.answered import Answered
from changelog.commands.decide import Command
from changelog.commands.outcome import Outcome, Place, parse_outcome
from changelog.commands.schema import COMMANDS, OUTCOMES, command_of, command_topic
from changelog.commands.transaction import ENTITIES, Known, Transaction
from changelog.envelope import encode, envelope
from changelog.exact import parse
from changelog.latest import Version
from changelog.positions import Vector
from runtime.settings import topic_of

pytestmark = pytest.mark.property

PARTITIONS = 2
TIME = 1_772_000_000_000
MARKER = (None, b"marker")


class Kafka:
    """Topics as lists. ``open``: topic-partitions with a transaction of somebody else's, and where it began: nothing
    from there on can be read."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[tuple[str | None, bytes]]] = defaultdict(list)
        self.offsets: dict[tuple[str, int], int] = {}
        self.open: dict[tuple[str, int], int] = {}

    def append(self, topic: str, key: str | None, value: bytes, partition: int | None = None) -> Place:
        at = _partition(key or "") if partition is None else partition
        log = self.logs[topic, at]
        log.append((key, value))
        return Place(topic, at, len(log) - 1)

    def readable(self, topic: str, partition: int) -> list[tuple[str | None, bytes]]:
        log = self.logs[topic, partition]
        return log[: self.open.get((topic, partition), len(log))]

    def changes(self, entity: str) -> list[tuple[int, int, dict[str, Any]]]:
        """(partition, offset, envelope) of everything in a topic, in the order of offsets."""
        return [
            (partition, offset, parse(value))
            for partition in range(PARTITIONS)
            for offset, (_, value) in enumerate(self.logs[topic_of(entity), partition])
            if value != MARKER[1]
        ]


class Said:
    """What can be read of the log."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._versions: dict[tuple[str, str, str], Version] = {}
        self._reached: Vector = {topic_of(entity): dict.fromkeys(range(PARTITIONS), 0) for entity in ENTITIES}

    def catch_up(self) -> None:
        for entity in ENTITIES:
            for partition, reached in self._reached[topic_of(entity)].items():
                log = self._kafka.readable(topic_of(entity), partition)
                for offset in range(reached, len(log)):
                    key, value = log[offset]
                    if (key, value) == MARKER:
                        continue
                    told = parse(value)
                    current, service = told["current"], told["provenance"]["serviceName"]
                    version = Version(current, offset, service, told["provenance"]["identifier"], partition)
                    self._versions[entity, key or "", current["ref"]] = version
                self._reached[topic_of(entity)][partition] = max(reached, len(log))

    def reached(self) -> Vector:
        return self._reached

    def get(self, entity: str, guest: str, ref: str) -> Version | None:
        return self._versions.get((entity, guest, ref))

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None:
        return next(((g, v) for (e, g, r), v in self._versions.items() if (e, r) == (entity, ref)), None)


class Service:
    """The service as it is between two kills, on that Kafka."""

    def __init__(self, kafka: Kafka, directory: Path) -> None:
        kafka.open.clear()  # it waits until all that was written can be read
        self._kafka = kafka
        self._known = Known(Said(kafka))
        self._known.catch_up()
        self._answered = Answered(directory)
        for partition in range(PARTITIONS):
            log = kafka.logs[OUTCOMES, partition]
            self._answered.add(parse_outcome(value) for key, value in log if (key, value) != MARKER)
        self._at = {
            (command_topic(name), partition): kafka.offsets.get((command_topic(name), partition), 0)
            for name in COMMANDS for partition in range(PARTITIONS)
        }  # fmt: skip

    def answer(self, most: int, dies: str) -> bool:
        """One transaction; whether the service lives on."""
        self._known.catch_up()
        commands: list[Command] = []
        for (topic, partition), at in self._at.items():
            for offset, (key, value) in enumerate(self._kafka.logs[topic, partition][at:], at):
                if len(commands) < most:
                    place = Place(topic, partition, offset)
                    commands.append(
                        Command(
                            command_of(topic), place, 1_772_000_000_000, None if key is None else key.encode(), value
                        )
                    )
                    self._at[topic, partition] = offset + 1
        made = Transaction(commands, self._known, self._answered)
        if dies == "before the commit":
            return False
        places = [self._kafka.append(topic_of(o.entity), o.guest, o.value) for o in made.outputs]
        for _, outcome in made.outcomes(places):
            self._kafka.append(OUTCOMES, None, outcome.encode(), outcome.source.partition)
        for topic, partition in {place[:2] for place in places}:
            self._kafka.append(topic, *MARKER, partition)
        self._kafka.offsets |= self._at
        if dies == "after the commit":
            return False
        made.settle(places)
        return True

    def close(self) -> None:
        self._answered.close()


def _partition(guest: str) -> int:
    return ord(guest[-1]) % PARTITIONS if guest else 0


class Sent(NamedTuple):
    """A command to be sent; ``seen``: how far its expected version is from the newest there is, None for none."""

    name: str
    id: str
    guest: str
    order: str
    body: dict[str, Any]
    seen: int | None


GUESTS, ORDERS = ("g0", "g1"), ("o0", "o1")
BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "place-order": st.fixed_dictionaries({"total": st.sampled_from([5, 5.0, 6]), "currency": st.just("GBP")}),
    "change-order": st.fixed_dictionaries(
        {}, optional={"status": st.sampled_from(["PAID", "SHIPPED"]), "country": st.sampled_from(["FR", "GB"])}
    ),
    "cancel-order": st.just({}),
    "update-guest": st.fixed_dictionaries({"email": st.sampled_from(["a@b", "c@d", None])}),
}


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    name = draw(st.sampled_from([*COMMANDS, "place-order", "change-order", "change-order"]))
    seen = draw(st.sampled_from([None, None, None, 0, 0, -1]))
    return Sent(name, f"c{draw(st.integers(0, 40))}", draw(st.sampled_from(GUESTS)),
                draw(st.sampled_from(ORDERS)), draw(BODIES[name]), seen)  # fmt: skip


STEPS = st.one_of(
    *(sent() for _ in range(12)),
    st.sampled_from([None, b"", b"{", b"[]", b'{"id": "c1"}']).map(lambda value: ("bad", value)),
    *(st.tuples(st.just("answer"), st.integers(1, 6), st.just("never")) for _ in range(4)),
    st.tuples(st.just("answer"), st.integers(1, 6), st.sampled_from(["before the commit", "after the commit"])),
    st.just(("forget",)),
    st.tuples(st.just("open"), st.just("changelog.order"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("open"), st.just("changelog.order"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("open"), st.sampled_from(["changelog.order", "changelog.guest"]), st.integers(0, PARTITIONS - 1)),
    st.just(("close",)),
    st.tuples(st.just("other"), st.sampled_from(GUESTS)),
)  # fmt: skip


def value_of(step: Sent, kafka: Kafka) -> bytes:
    """The command as its sender writes it down, who sees the whole log."""
    told: dict[str, Any] = {"id": step.id, "guestRef": step.guest}
    if step.name == "update-guest":
        told |= {"set": step.body, "create": True}
    elif step.name == "place-order":
        items = [{"sku": "s", "quantity": 1, "unitPrice": 5}]
        told |= {"channel": "WEB", "order": {"ref": step.order, "items": items, **step.body}}
    else:
        told |= {"orderRef": step.order}
        told |= {"change": step.body} if step.name == "change-order" else {"channel": "WEB"}
    if step.seen is not None and step.name != "place-order":
        entity, ref = ("guest", step.guest) if step.name == "update-guest" else ("order", step.order)
        versions = [offset for _, offset, told in kafka.changes(entity) if told["current"]["ref"] == ref]
        told["expectedVersion"] = max(0, max(versions, default=0) + step.seen)
    return json.dumps(told).encode()


@settings(max_examples=150)
@given(st.lists(STEPS, min_size=20, max_size=80))
def test_commands_keep_their_laws(steps: list[Any]) -> None:
    kafka, others = Kafka(), 0
    for guest in GUESTS:
        told = {"id": f"create-{guest}", "guestRef": guest, "create": True, "set": {"email": "a@b"}}
        kafka.append("command.update-guest", guest, json.dumps(told).encode())
    with tempfile.TemporaryDirectory() as home:
        service = Service(kafka, Path(home) / "answered")

        def again() -> None:
            nonlocal service
            service.close()
            service = Service(kafka, Path(home) / "answered")

        for step in steps:
            if isinstance(step, Sent):
                kafka.append(command_topic(step.name), step.guest, value_of(step, kafka))
            elif step[0] == "bad":
                kafka.append("command.update-guest", "g0", step[1] or b"")
            elif step[0] == "answer":
                if not service.answer(step[1], step[2]):
                    again()
            elif step[0] == "forget":
                kafka.offsets.clear()
                again()
            elif step[0] == "open":
                kafka.open.setdefault(step[1:], len(kafka.logs[step[1:]]))
            elif step[0] == "close":
                kafka.open.clear()
            else:  # a guest, or an order, of another service
                others += 1
                entity, ref = ("order", f"x{others}") if others % 2 else ("guest", f"{step[1]}-{others}")
                current = {"ref": ref, "guestRef": step[1], "status": "PLACED"}
                value = encode(envelope("shop", f"i{others}", current))
                kafka.append(topic_of(entity), ref if entity == "guest" else step[1], value)
        again()
        service.answer(10_000, "never")
        service.answer(10_000, "never")
        service.close()
    check_laws(kafka)


def check_laws(kafka: Kafka) -> None:
    outcomes = [
        parse_outcome(value)
        for partition in range(PARTITIONS)
        for key, value in kafka.logs[OUTCOMES, partition]
        if (key, value) != MARKER
    ]
    sources = Counter(outcome.source for outcome in outcomes)
    asked = {
        Place(command_topic(name), partition, offset): value
        for name in COMMANDS
        for partition in range(PARTITIONS)
        for offset, (_, value) in enumerate(kafka.logs[command_topic(name), partition])
    }
    assert sources == Counter(asked.keys()), "every record of a command has exactly one outcome"
    firsts = [outcome for outcome in outcomes if outcome.id is not None and not outcome.repeats]
    assert max(Counter(outcome.id for outcome in firsts).values(), default=1) == 1, "an id is answered once"
    by_id = {outcome.id: outcome for outcome in firsts}
    for outcome in outcomes:
        if outcome.repeats:
            first = by_id[outcome.id]
            assert (outcome.status, outcome.reasons, outcome.records) == (first.status, first.reasons, first.records)
            assert outcome.repeats.source == first.source
    check_records(kafka, firsts)
    check_chains(kafka, {outcome.id: json.loads(asked[outcome.source]) for outcome in firsts})


def check_records(kafka: Kafka, firsts: list[Outcome]) -> None:
    """What is in the log from this service is what accepted commands say they wrote: all of it, and nothing else."""
    named = {place: outcome.id for outcome in firsts for place in outcome.records}
    there = {
        Place(topic_of(entity), partition, offset): told["provenance"]["identifier"]
        for entity in ("guest", "order", "event")
        for partition, offset, told in kafka.changes(entity)
        if told["provenance"]["serviceName"] == "commands"
    }
    assert there == named
    assert all(not outcome.records for outcome in firsts if outcome.status == "rejected")


def check_chains(kafka: Kafka, asked: dict[str | None, dict[str, Any]]) -> None:
    """``original`` is what was last said, at the version that was expected; and the end of each chain is what its
    commands make, put on one another by a fold that knows nothing of the service."""
    for entity in ENTITIES:
        newest: dict[str, tuple[int, Any]] = {}
        folded: dict[str, dict[str, Any]] = {}
        for _, offset, told in kafka.changes(entity):
            if told["provenance"]["serviceName"] != "commands":
                continue
            current, command = told["current"], asked[told["provenance"]["identifier"]]
            before, original = newest.get(current["ref"], (None, None))
            assert told.get("original") == original, "the chain holds"
            if command.get("expectedVersion") is not None:
                assert command["expectedVersion"] == before
            wanted = command.get("set") or command.get("change") or command.get("order") or {"status": "CANCELLED"}
            made = folded.setdefault(current["ref"], {"status": "PLACED"} if entity == "order" else {})
            made |= wanted
            newest[current["ref"]] = (offset, current)
        for ref, (_, current) in newest.items():
            assert {name: current.get(name) for name in folded[ref]} == folded[ref]
