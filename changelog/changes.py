"""The changes of the log for plain consumers: what is neither bad, nor a tombstone, nor a copy of an earlier change,
nor of a guest who is erased.

The same judgement as the layers': ``changelog.validation`` and, within the speed layer's horizon,
``changelog.identities``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from changelog.erased import NOBODY
from changelog.identities import Identities, digest
from changelog.reader import Entry
from changelog.refill import catch_up
from changelog.validation import check
from runtime.settings import Settings, entity_of

FORGET_SECONDS = 60


class Change(NamedTuple):
    """A record that counts. ``value`` is valid: JSON, as its entity's schema wants it."""

    entity: str
    entry: Entry
    service: str
    identifier: str


class Changes:
    """Tells the changes of topic-partitions that are read one after another from a position on, by a store of
    identities for each under ``directory``. One at a time for each directory."""

    def __init__(self, settings: Settings, directory: Path, durable: bool = True) -> None:
        self._settings = settings
        self._directory = directory
        self._durable = durable
        self._stores: dict[tuple[str, int], Identities] = {}
        self._forgot: dict[tuple[str, int], int] = {}
        self.erased = NOBODY

    def of(self, entries: Sequence[Entry]) -> list[Change]:
        """Those of ``entries`` that are changes, in their order. Asked again, after a crash, it answers the same.

        The first of a topic-partition may need a look at what was appended in the horizon before it. Raises
        TransientError if Kafka does not give that.
        """
        places: dict[tuple[str, int], list[Entry]] = {}
        for entry in entries:
            places.setdefault((entry.topic, entry.partition), []).append(entry)
        return [change for place, of in places.items() for change in self._of_one(place, of)]

    def begin(self, topic: str, partition: int, offset: int) -> None:
        """Say that nothing before ``offset`` is to be looked up in Kafka: it was given, or is going to be."""
        self._store((topic, partition)).mark([], offset)

    def _of_one(self, place: tuple[str, int], entries: list[Entry]) -> list[Change]:
        store = self._ready(place, entries[0])
        entity = entity_of(place[0])
        valid = []
        for entry in entries:
            if not entry.value or self.erased.has(entry.key):
                continue
            reason, service, identifier = check(entity, entry.key, entry.value)
            if reason is None and service is not None and identifier is not None:
                valid.append(Change(entity, entry, service, identifier))
        rows = [
            (entry.offset, entry.time * 1000, digest(entry.key, service, identifier))
            for _, entry, service, identifier in valid
        ]
        copies = store.mark(rows, entries[-1].offset + 1)
        return [change for change, copy in zip(valid, copies, strict=True) if not copy]

    def _ready(self, place: tuple[str, int], first: Entry) -> Identities:
        """The store of a topic-partition; it knows what lies before ``first``, of which all was given or is read."""
        appended, horizon = first.time * 1000, self._settings.speed.horizon_seconds
        known = place in self._stores
        store = self._store(place)
        if not known:
            catch_up(self._settings.kafka, store, *place, first.offset, appended, horizon)
        if appended - self._forgot.get(place, 0) > FORGET_SECONDS * 1_000_000:
            store.forget(appended)
            self._forgot[place] = appended
        return store

    def _store(self, place: tuple[str, int]) -> Identities:
        if place not in self._stores:
            path = self._directory / f"{place[0]}-{place[1]}"
            self._stores[place] = Identities(path, self._settings.speed.horizon_seconds, self._durable)
        return self._stores[place]

    def close(self) -> None:
        """Give the files back."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()
