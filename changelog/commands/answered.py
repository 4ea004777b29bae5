"""The commands that were answered already: ``command.outcomes`` is the record of it, this is a cache of that record.

So an id is known as long as the topic keeps an answer to it (``commands.remember_days``).
"""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import lmdb

from changelog.commands.outcome import Outcome, Place, parse_outcome
from changelog.commands.schema import OUTCOMES
from changelog.erased import NOBODY, Erased
from changelog.reader import Reader
from changelog.topics import start_offsets
from runtime.errors import ContractError
from runtime.settings import Settings

LIMIT_BYTES = 1 << 35
"""The most that the file can grow to; it grows as it is needed."""


class Answered:
    """The first outcome of each id, and which records were answered. The directory is this object's own: it is wiped
    here, and filled by :meth:`fill`."""

    def __init__(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        # no sync: what a power cut leaves behind is not read
        self._env = lmdb.open(str(directory), map_size=LIMIT_BYTES, max_dbs=2, sync=False)
        self._ids, self._places = (self._env.open_db(name) for name in (b"ids", b"places"))

    def fill(self, settings: Settings, erased: Erased = NOBODY) -> int:
        """Read the whole topic up to its end now; returns how many outcomes it holds. Those of ``erased`` guests are
        forgotten: their commands are rejected in any case.

        Raises TransientError if Kafka does not answer, ContractError for a record that is no outcome.
        """
        number = 0
        with Reader(settings, start_offsets(settings, [OUTCOMES])) as reader:
            for entries in reader.read_to(reader.ends()):
                found = []
                for entry in entries:
                    try:
                        outcome = parse_outcome(entry.value or b"")
                        found.append(replace(outcome, id=None) if erased.has(outcome.guest) else outcome)
                    except (ValueError, KeyError, TypeError) as error:
                        raise ContractError(
                            f"{Place(entry.topic, entry.partition, entry.offset)}: somebody else wrote it, it is no "
                            f"outcome ({error!r})"
                        ) from error
                self.add(found)
                number += len(found)
        return number

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Note outcomes. Of one id the first stays; of one whose first the topic has let go of, any answer does."""
        with self._env.begin(write=True) as transaction:
            for outcome in outcomes:
                transaction.put(_place(outcome.source), outcome.digest.encode(), db=self._places)
                if outcome.id is not None:
                    is_first = outcome.repeats is None
                    transaction.put(_name(outcome.id), outcome.encode(), overwrite=is_first, db=self._ids)

    def first(self, id_: str) -> Outcome | None:
        """The outcome of the first command with this id."""
        with self._env.begin(db=self._ids) as transaction:
            found = transaction.get(_name(id_))
        return None if found is None else parse_outcome(bytes(found))

    def has(self, source: Place, digest: str) -> bool:
        """Whether the record at this place, with these bytes, was answered."""
        with self._env.begin(db=self._places) as transaction:
            found = transaction.get(_place(source))
        return found is not None and bytes(found) == digest.encode()

    def close(self) -> None:
        """Give the files back."""
        self._env.close()


def _name(id_: str) -> bytes:
    return blake2b(id_.encode(), digest_size=16).digest()


def _place(source: Place) -> bytes:
    return blake2b(f"{source.topic}/{source.partition}/{source.offset}".encode(), digest_size=16).digest()
