"""The law of capture: whatever the database does, and wherever connector and mapper are killed, the log folds to what
the database holds, tells its states in their order, each once, and every chain holds."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.exact import parse
from changelog.sources.cdc.events import Anew, Completed, End
from changelog.sources.cdc.mapper import Name
from changelog.validation import check
from runtime.settings import entity_of
from tests.captured import MILLIS, Database, Debezium, Log, Service

pytestmark = pytest.mark.property

STATEMENTS = {
    "customer": 8, "session": 5, "order": 12, "status": 6, "currency": 5, "owner": 5, "item": 8, "drop item": 4,
    "drop order": 4, "drop session": 2, "drop customer": 2, "rekey order": 3, "rekey customer": 3, "truncate orders": 1,
    "truncate items": 1,
}  # fmt: skip


@given(st.integers(0, 1 << 32), st.integers(1, 100))
@settings(max_examples=400)
def test_the_log_says_what_the_database_says(seed: int, rounds: int) -> None:
    """``seed`` decides what happens: drawn one by one, rounds would hardly ever get through a snapshot."""
    chance = Random(seed)
    database, log = Database(), Log()
    stream = Debezium(database)
    for key in range(2):
        for what in ("customer", "session", "order"):
            database.act(what, key, key, 2)
    stream.commit()
    stream.anew()
    with tempfile.TemporaryDirectory() as directory:
        rewind = chance.choice([0, 300])
        service = Service(log, Path(directory) / "0", rewind)
        for number in range(rounds + 20):
            happen(chance, database, stream, bool(rewind))
            for turn in range(chance.randint(0, 2)):
                killed = chance.choice([None, None, None, 0, 1, 2])
                if not service.take(stream.records, chance.randint(1, 40), chance.randint(1, 3), killed):
                    service.mapper.close()
                    service = Service(log, Path(directory) / f"{number}-{turn}", rewind)
        stream.finish()
        while service.next < len(stream.records):
            assert service.take(stream.records, 100, 5, None)
        assert service.mapper.unknown == 0
        service.mapper.close()
    assert_holds(stream, log)


@given(st.integers(0, 1 << 32), st.integers(1, 40))
@settings(max_examples=200)
def test_what_is_republished_mends_the_log(seed: int, rounds: int) -> None:
    """Somebody else writes of the shop's entities, some are republished while the shop goes on; in the end all are."""
    chance = Random(seed)
    database, log = Database(), Log()
    stream = Debezium(database)
    stream.anew()
    with tempfile.TemporaryDirectory() as directory:
        service = Service(log, Path(directory) / "0")
        for number in range(rounds):
            happen(chance, database, stream, False)
            if chance.random() < 0.5:
                meddle(chance, log)
            if not service.take(stream.records, chance.randint(1, 40), 2, chance.choice([None, None, 0, 1])):
                service.mapper.close()
                service = Service(log, Path(directory) / str(number))
        stream.finish()
        while service.next < len(stream.records):
            assert service.take(stream.records, 100, 5, None)
        meddle(chance, log)
        stream.open_request()
        stream.close_requests(chance.choice([0, 1, 5]), sorted({*NAMES, *stream.database.documents()}))
        stream.finish()
        while service.next < len(stream.records):
            assert service.take(stream.records, 100, 5, None)
        service.mapper.close()
    documents = stream.database.documents()
    newest = {(entity, ref): v.current for entity, of in log.newest.items() for (_, ref), v in of.items()}
    assert_chains(log)
    for name, document in documents.items():
        assert document == (newest.get(name) if valid(name, document) else log.bad.get(name))
    assert {name for name in newest if name not in log.bad} == documents.keys() - log.bad.keys()


NAMES = [(entity, f"shop-{entity}-{key}") for entity in ("guest", "session", "order") for key in range(5)]


def meddle(chance: Random, log: Log) -> None:
    """Somebody else changes, deletes or makes an entity of the shop's in the log."""
    entity, ref = chance.choice(NAMES)
    found = log.find(entity, ref)
    if found is not None:
        log.meddle(
            (entity, ref), found[0], chance.choice([None, {**found[1].current, "modifiedAt": MILLIS[:-4] + "9Z"}])
        )
    elif entity == "guest":
        log.meddle((entity, ref), ref, {"ref": ref, "firstName": "nobody", "createdAt": MILLIS, "modifiedAt": MILLIS})


def happen(chance: Random, database: Database, stream: Debezium, late: bool) -> None:
    """A little of everything, but for the mapper. ``late``: chunks may be read from before what is in the stream."""
    for _ in range(chance.randint(0, 3)):
        for _ in range(chance.randint(1, 4)):
            (what,) = chance.choices(list(STATEMENTS), list(STATEMENTS.values()))
            database.act(what, *(chance.randint(0, 3) for _ in range(3)))
        if chance.random() < 0.05:
            stream.snapshot()
            stream.emit(chance.choice([0, 1000]))
        else:
            stream.commit()
        if chance.random() < 0.5:
            stream.emit(chance.choice([1, 3, 10, 1000]))
        if chance.random() < 0.7:
            stream.advance_snapshot(chance.choice([0, 0, 1, 2, 4]) if late else 0)
    if chance.random() < 0.1:
        stream.open_request()
    if chance.random() < 0.2:
        stream.close_request(chance.choice([0, 1, 3]), chance.sample(NAMES, chance.randint(0, len(NAMES))))
    stream.emit(chance.choice([0, 3, 10, 1000]))
    if chance.random() < 0.15:
        stream.crash(chance.choice([1, 3, 9, 30]))
    elif chance.random() < 0.02:
        stream.anew()


def assert_holds(stream: Debezium, log: Log) -> None:
    """The log is what the stream, followed from the database's side, lets expect."""
    assert assert_chains(log) == expected(stream), "the states of an entity, in their order, each once"
    newest = {(entity, ref): v.current for entity, of in log.newest.items() for (_, ref), v in of.items()}
    for name, document in stream.database.documents().items():
        assert document in (newest.get(name), log.bad.get(name))
    assert newest.keys() | log.bad.keys() >= stream.database.documents().keys() >= log.bad.keys()
    assert {name for name in newest if name not in log.bad} <= stream.database.documents().keys()


def assert_chains(log: Log) -> dict[Name, list[Any]]:
    """Every chain holds, and no identity stands for two changes. Returns what was told of each entity."""
    told: dict[Name, list[Any]] = defaultdict(list)
    said: dict[tuple[str, str, str], Any] = {}
    identities: Counter[tuple[str, bytes | None, str]] = Counter()
    for record in log.records:
        envelope, entity = parse(record.value or b""), entity_of(record.topic)
        current, original = envelope.get("current"), envelope.get("original")
        ref, guest = (current or original)["ref"], (record.key or b"").decode()
        identities[record.topic, record.key, envelope["provenance"]["identifier"]] += 1
        assert original == said.get((entity, guest, ref)), "a chain is broken"
        assert current != original, "a change that is none"
        if check(entity, record.key, record.value or b"").reason is None:
            said[entity, guest, ref] = current
        told[entity, ref].append(current)
    assert identities.total() == len(identities), "an identity stands for two changes"
    return told


def expected(stream: Debezium) -> dict[Name, list[Any]]:
    """What is told of each entity: its states at the ends of transactions, from the first complete snapshot of a life
    on, and what differs after a gap."""
    states: list[dict[Name, Any]] = []
    whole, seen = False, 0
    for event, taken in zip(stream.records, stream.taken, strict=True):
        if isinstance(event, Anew):
            whole = False
        elif isinstance(event, Completed):
            if not whole:
                states.append(stream.documents[taken])
                whole, seen = True, taken
        elif isinstance(event, End) and whole and taken > seen:
            states.append(stream.documents[taken])
            seen = taken
    told: dict[Name, list[Any]] = defaultdict(list)
    known: dict[Name, Any] = {}
    last: dict[Name, Any] = {}
    for state in states:
        for name in {**last, **state}:
            document = state.get(name)
            if document == last.get(name):
                continue
            last[name] = document
            before = known.get(name)
            if before is not None and (document is None or guest(name, before) != guest(name, document)):
                told[name].append(None)
                before = known[name] = None
            if document is not None and document != before:
                told[name].append(document)
                if valid(name, document):
                    known[name] = document
    return told


def guest(name: Name, document: dict[str, Any]) -> str:
    return str(document["ref"] if name[0] == "guest" else document["guestRef"])


def valid(name: Name, document: dict[str, Any]) -> bool:
    if name[0] == "order":
        return "currency" in document
    return name[0] != "session" or document["channel"] == "WEB"
