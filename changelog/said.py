"""What the log last said of each entity, for services that write: they take ``original`` from here, so that it is the
previous ``current`` of that entity (the chain rule)."""

import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import lmdb
import orjson

from changelog.changes import Change, Changes
from changelog.derived import DERIVED, GROUP
from changelog.envelope import Entity, guest_ref
from changelog.erased import NOBODY, Erased
from changelog.exact import parse, text_of
from changelog.latest import Latest, Update, Version
from changelog.positions import Vector, highest
from changelog.reader import Reader
from changelog.topics import committed_offsets, start_offsets
from runtime.errors import RetentionError, TransientError
from runtime.settings import Settings, topic_of

LIMIT_BYTES = 1 << 35
"""The most that the file can grow to; it grows as it is needed."""

PAGE = 1_000
"""So many entities are read at once where all are asked for."""

WAIT_MS = 100
"""The longest that asking for news takes where there is none."""

_PARTITION = struct.Struct(">i")


class Said:
    """The newest version of each entity of ``entities`` (of guest, session, order), kept under ``directory`` as a cache
    of the log. The directory is this object's own: it is wiped here, and filled by the first :meth:`catch_up`.

    One thread calls :meth:`catch_up`; any may ask. Entities are told by (partition, ref): one that changes its guest is
    deleted under the old one first and then created under the new one.
    """

    def __init__(self, settings: Settings, directory: Path, entities: Sequence[str], erased: Erased = NOBODY) -> None:
        """``erased``: guests of whom nothing is said here. Raises ValueError for an entity that has no versions."""
        if unknown := set(entities) - set(DERIVED):
            raise ValueError(f"no versions are kept of {', '.join(sorted(unknown))}")
        self._settings = settings
        self._directory = directory
        self._entities = tuple(entities)
        self._reading: tuple[Reader, Changes] | None = None
        self._env: lmdb.Environment | None = None
        self._caught_up = False
        self._erased = erased
        self._wipe()

    def catch_up(self, at_least: Vector | None = None) -> None:
        """Read the committed records of ``changelog.<entity>`` up to the end that there is now.

        Kafka makes the records of a transaction readable shortly after it has answered that they are committed. So who
        writes and asks says how far it wrote itself: ``at_least``, next offsets by topic and partition.

        The first call reads ``latest.<entity>`` whole, and the changelog from where the service ``derive`` stands.
        Raises TransientError if Kafka does not answer, or if its retention has passed a place that is not known here or
        to ``derive``: versions would be missing until that is mended. After an error the next call is a first one
        again, and until it has succeeded questions raise TransientError too.
        """
        try:
            reader, changes = self._bootstrap() if self._reading is None else self._reading
            for entries in reader.read_to(highest(reader.ends(), at_least or {})):
                self._apply(changes.of(entries))
            self._caught_up = True
        except RetentionError as error:
            self._wipe()
            raise TransientError(f"{error}: what was said there was not read in time") from error
        except BaseException:
            self._wipe()  # what was read may not be in
            raise

    def reached(self) -> Vector:
        """Up to where the changelog is in here; nowhere before the first :meth:`catch_up`."""
        return {} if self._reading is None else self._reading[0].positions

    def get(self, entity: str, guest: str, ref: str) -> Version | None:
        """What was last said of an entity of a guest; None if nothing was, or that it is deleted."""
        return next((version for _, of, version in self._versions(entity, ref) if of == guest), None)

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None:
        """The guest whose it is, and the version, whoever that is. Of several, which a broken chain leaves behind, the
        one that was appended last."""
        found = max(self._versions(entity, ref), key=lambda one: one[0], default=None)
        return None if found is None else found[1:]

    def all(self, entity: str) -> Iterator[tuple[str, Version]]:
        """Guest and version of every entity, in no particular order. What is said meanwhile may be among them."""
        after, page = b"", [b""]
        while page:
            page, values = [], []
            with self._known.begin(db=self._refs[entity]) as transaction:
                cursor = transaction.cursor()
                there = cursor.set_range(after)
                while there and len(page) < PAGE:
                    page.append(bytes(cursor.key()))
                    values.append(bytes(cursor.value()))
                    there = cursor.next()
            for value in values:
                yield _unpacked(value)[1:]
            after = page[-1] + b"\0" if page else after

    def of_guest(self, entity: str, guest: str) -> Iterator[Version]:
        """All of a guest, in no particular order."""
        head = _digest(guest)
        with self._known.begin() as transaction:
            cursor = transaction.cursor(db=self._guests[entity])
            there = cursor.set_range(head)
            names = []
            while there and (name := bytes(cursor.key())).startswith(head):
                names.append(name[16:])
                there = cursor.next()
            values = [bytes(transaction.get(name, b"", db=self._refs[entity])) for name in names]
        for value in values:
            yield _unpacked(value)[2]

    def count(self, entity: str) -> int:
        """How many there are."""
        with self._known.begin() as transaction:
            return int(transaction.stat(db=self._refs[entity])["entries"])

    def close(self) -> None:
        """Give connections and files back. What is kept there is of no use to anybody else."""
        for one in (*(self._reading or ()), self._env):
            if one is not None:
                one.close()
        self._reading = self._env = None
        self._caught_up = False

    @property
    def _known(self) -> lmdb.Environment:
        if not self._caught_up:
            raise TransientError("what the log last said is not known here: catch up first")
        return self._open

    @property
    def _open(self) -> lmdb.Environment:
        if self._env is None:
            raise ValueError("it is closed")
        return self._env

    def _wipe(self) -> None:
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        # neither sync nor metasync: what a power cut leaves behind is not read
        self._env = lmdb.open(str(self._directory / "versions"), map_size=LIMIT_BYTES, max_dbs=6, sync=False)
        self._refs = {entity: self._env.open_db(f"{entity} by ref".encode()) for entity in self._entities}
        self._guests = {entity: self._env.open_db(f"{entity} by guest".encode()) for entity in self._entities}

    def _bootstrap(self) -> tuple[Reader, Changes]:
        committed = self._committed()
        for entity in self._entities:
            self._fill(entity)
        changes = Changes(self._settings, self._directory / "identities", durable=False)
        changes.erased = self._erased
        self._reading = Reader(self._settings, committed, WAIT_MS), changes
        return self._reading

    def _committed(self) -> Vector:
        """Up to where the derived topics hold everything. A partition of which nothing was derived yet is at 0.

        Asked before they are read, so that what is read holds at least what lies before it.
        """
        topics = [topic_of(entity) for entity in self._entities]
        committed = committed_offsets(self._settings, GROUP, topics)
        vector: Vector = {}
        for topic, starts in start_offsets(self._settings, topics).items():
            for partition, start in starts.items():
                at = committed.get(topic, {}).get(partition, 0)
                if at < start:
                    raise TransientError(
                        f"{topic}/{partition}: the derived topics are complete up to offset {at}, and Kafka begins at "
                        f"{start}: what lies between is not known yet; look at the service derive (anabranch status), "
                        "and if it has failed: anabranch latest rebuild"
                    )
                vector.setdefault(topic, {})[partition] = at
        return vector

    def _fill(self, entity: str) -> None:
        with Latest(self._settings, entity) as latest:
            caught_up = False
            while not caught_up:
                batch = latest.read(0.5)
                caught_up = batch.caught_up
                with self._open.begin(write=True) as transaction:
                    if batch.anew:
                        transaction.drop(self._refs[entity], delete=False)
                        transaction.drop(self._guests[entity], delete=False)
                    for update in batch.updates:
                        self._take(transaction, entity, update)

    def _apply(self, changes: Iterable[Change]) -> None:
        with self._open.begin(write=True) as transaction:
            for entity, entry, service, identifier in changes:
                envelope = parse(entry.value or b"")
                current: Entity | None = envelope.get("current")
                ref = (current or envelope["original"])["ref"]
                said = None
                if current is not None:
                    said = Version(current, entry.offset, service, identifier, entry.partition)
                self._take(transaction, entity, Update(ref, entry.partition, entry.offset, entry.time, said))

    def _take(self, transaction: lmdb.Transaction, entity: str, update: Update) -> None:
        """Put in a version, or take one out, unless a newer one is there."""
        name = _digest(update.ref) + _PARTITION.pack(update.partition)
        before = transaction.get(name, db=self._refs[entity])
        if before is not None:
            _, guest, there = _unpacked(bytes(before))
            if there.offset > update.offset:
                return
            transaction.delete(name, db=self._refs[entity])
            transaction.delete(_digest(guest) + name, db=self._guests[entity])
        if update.version is not None:
            guest = guest_ref(entity, {"current": update.version.current})
            if self._erased.has(guest):
                return
            transaction.put(name, _packed(update.time, guest, update.version), db=self._refs[entity])
            transaction.put(_digest(guest) + name, b"", db=self._guests[entity])

    def _versions(self, entity: str, ref: str) -> list[tuple[int, str, Version]]:
        """Append time, guest and version of what has this ref, in all partitions."""
        head, values = _digest(ref), []
        with self._known.begin() as transaction:
            cursor = transaction.cursor(db=self._refs[entity])
            there = cursor.set_range(head)
            while there and bytes(cursor.key()).startswith(head):
                values.append(bytes(cursor.value()))
                there = cursor.next()
        return [_unpacked(value) for value in values]


def _digest(text: str) -> bytes:
    """16 bytes that stand for a ref: names in the store have one length."""
    return blake2b(text.encode(), digest_size=16).digest()


def _packed(time: int, guest: str, version: Version) -> bytes:
    about = orjson.dumps([time, guest, *version[1:]])
    return about + b"\n" + text_of(version.current)


def _unpacked(value: bytes) -> tuple[int, str, Version]:
    about, _, current = value.partition(b"\n")
    time, guest, offset, service, identifier, partition = orjson.loads(about)
    return time, guest, Version(parse(current), offset, service, identifier, partition)
