"""Identities of changes seen: which change of a topic-partition is a copy of an earlier one, within the horizon.

For each topic-partition there is a store (LMDB) of the identities seen: identity and offset of the record that survives
→ append time of its newest copy. A change is a duplicate iff its identity is there with a lower offset and a copy at
most the horizon before it, by the broker's time.

The store is a cache of the log. Asked again, as when records are read a second time after a crash, it gives the same
answers: what a record was compared with is kept until later ones are asked for. One that is behind (lost, moved, or
taken back by a power cut) is shown what it lacks (``changelog.refill``).
"""

import hashlib
import struct
from pathlib import Path

import lmdb

SLACK_SECONDS = 600
"""How much longer than the horizon an identity is kept: for a broker's clock that goes back a little."""

MAP_BYTES = 1 << 33
"""The most a store can grow to; the file grows as it is needed."""

Row = tuple[int, int, bytes]
"""offset, append time in microseconds, digest of the identity."""

_POSITION = struct.Struct(">q")
_NEXT = b"next"


def digest(key: bytes | None, service: str, identifier: str) -> bytes:
    """16 bytes that stand for an identity within its topic-partition."""
    parts = (key or b"", service.encode(), identifier.encode())
    return hashlib.blake2b(b"".join(struct.pack(">I", len(p)) + p for p in parts), digest_size=16).digest()


class Identities:
    """The store of one topic-partition. One process writes at a time; LMDB sees to that."""

    def __init__(self, path: Path, horizon_seconds: int, durable: bool = True) -> None:
        """``durable``: whether it outlives a power cut. One that is made anew at each start need not."""
        path.mkdir(parents=True, exist_ok=True)
        # metasync: a power cut may take the last transactions back, as a whole; then the store is behind
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=3, metasync=False, sync=durable)
        self._env.reader_check()  # a worker that was killed while it read would keep old pages
        self._seen, self._ages, self._about = (self._env.open_db(name) for name in (b"seen", b"ages", b"about"))
        self._horizon = horizon_seconds * 1_000_000
        self._kept = self._horizon + SLACK_SECONDS * 1_000_000

    def close(self) -> None:
        """Give the files back."""
        self._env.close()

    def next(self) -> int | None:
        """The offset after the last one that the store has seen; None if it is new."""
        with self._env.begin(db=self._about) as transaction:
            found = transaction.get(_NEXT)
        return None if found is None else _POSITION.unpack(found)[0]

    def count(self) -> int:
        """How many identities are there."""
        with self._env.begin() as transaction:
            return int(transaction.stat(db=self._seen)["entries"])

    def forget(self, time: int) -> None:
        """Drop what no record appended at or after ``time`` (microseconds) can be a copy of.

        To be called with the first record of an epoch: what is dropped then, a replay of this epoch does not ask for.
        """
        limit = _POSITION.pack(max(0, time - self._kept))
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor(db=self._ages)
            cursor.first()
            while (name := cursor.key()) and name[:8] < limit:
                transaction.delete(name[8:], db=self._seen)
                cursor.delete()

    def mark(self, rows: list[Row], end: int) -> list[bool]:
        """For each row, in the order of offsets, whether it is a duplicate; note them, and that the log is seen up to
        ``end``. Asking again gives the same answers."""
        answers = []
        with self._env.begin(write=True) as transaction:
            cursor = transaction.cursor(db=self._seen)
            for offset, time, identity in rows:
                first = last = None
                there = cursor.set_range(identity + _POSITION.pack(offset + 1))
                if (cursor.prev() if there else cursor.last()) and cursor.key()[:16] == identity:
                    first = _POSITION.unpack(cursor.key()[16:])[0]
                    last = _POSITION.unpack(cursor.value())[0]
                if first is None or last is None or (first != offset and time - last > self._horizon):
                    first, last = offset, None
                answers.append(first != offset)
                if last is None or time > last:
                    name = identity + _POSITION.pack(first)
                    if last is not None:
                        transaction.delete(_POSITION.pack(last) + name, db=self._ages)
                    transaction.put(name, _POSITION.pack(time), db=self._seen)
                    transaction.put(_POSITION.pack(time) + name, b"", db=self._ages)
            known = transaction.get(_NEXT, db=self._about)
            if known is None or _POSITION.unpack(known)[0] < end:
                transaction.put(_NEXT, _POSITION.pack(end), db=self._about)
        return answers


_open: dict[Path, Identities] = {}
"""Stores of this process; Spark uses a worker for many epochs."""


def identities(path: Path, horizon_seconds: int) -> Identities:
    """The store at ``path``, opened once in each process."""
    if path not in _open:
        _open[path] = Identities(path, horizon_seconds)
    return _open[path]
