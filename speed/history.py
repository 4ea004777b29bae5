"""Histories of guests for the views of matches: the one state that the speed layer keeps. Runs in Spark's workers.

For each partition there is a store (LMDB) of the records that matches can be made of, under (view, side, guest, group,
order, offset). An epoch puts its records in, and then asks for the matches of its part of the log: a function of the
records below the epoch's end and of where it starts. So a replayed epoch finds what it found before; records are
dropped only with a later epoch, and only when no match can reach them any more.

A store belongs to a generation. It is filled from the archive when the generation begins, and after that it notes each
epoch: one that has missed an epoch (lost, or put back from a copy) is refused, and a new generation makes it anew.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import lmdb
import orjson
import pyarrow as pa

from changelog.positions import Vector
from changelog.stores import DAMAGE, is_whole
from runtime import faults
from runtime.errors import ContractError, LostStateError
from views.matching import (
    CLOCK_SLACK,
    MATCHED,
    SECOND,
    Matches,
    Once,
    Progress,
    Seen,
    seen_in,
    side_rows,
)

SideRecord = Mapping[str, Any]
"""What ``views.matching.side_record`` makes of a record, read."""

LIMIT_BYTES = 1 << 34
"""The most that the store of a partition can grow to; the file grows as it is needed."""

_NUMBER = struct.Struct(">Q")
_SIGN = 1 << 63


def _packed(number: int) -> bytes:
    """A signed number in bytes that sort like it."""
    return _NUMBER.pack(number + _SIGN)


def _unpacked(text: bytes) -> int:
    return int(_NUMBER.unpack(text)[0]) - _SIGN


@lru_cache(1 << 16)
def _digest(text: str) -> bytes:
    """16 bytes that stand for a guest or a group: names in the store have one length."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _name(cursor: lmdb.Cursor) -> bytes:
    return bytes(cursor.key())


class Store:
    """The histories of one partition, for all views of matches of a pipeline."""

    def __init__(self, path: Path, views: Sequence[Matches]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._env = lmdb.open(str(path), map_size=LIMIT_BYTES, max_dbs=3)  # durable: what is lost is not found again
        self._env.reader_check()
        self.records, self._times, self._about = (self._env.open_db(n) for n in (b"records", b"times", b"about"))
        self._numbers = {
            (view.name, side): bytes([number])
            for number, (view, side) in enumerate((view, side) for view in views for side in view.sides)
        }
        self._views = {view.name: view for view in views}

    def close(self) -> None:
        """Give the files back."""
        self._env.close()

    def epoch(self) -> int | None:
        """The last epoch that is in; -1 after the filling at the beginning, None in a store that has nothing."""
        with self._env.begin(db=self._about) as transaction:
            found = transaction.get(b"epoch")
        return None if found is None else _unpacked(found)

    def size(self) -> dict[str, int]:
        """``records`` kept, ``bytes`` of them on disk and the ``limit_bytes`` of the store."""
        with self._env.begin() as transaction:
            records = transaction.stat(db=self.records)["entries"]
        return {"records": records, "bytes": self._used(), "limit_bytes": LIMIT_BYTES}

    def _used(self) -> int:
        return int((self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"])

    def put(
        self, records: Sequence[SideRecord], epoch: int, start: Vector, end: Vector, partition: int, filled: Vector
    ) -> None:
        """Put in the records of an epoch, but for those below ``filled``, which were put in before the first one; and
        how far time has come by its end. Drop what is too old."""
        with self._writing() as transaction:
            newest = {topic: self._time(transaction, topic, start[topic][partition]) for topic in end}
            before = dict(newest)
            for record in records:
                newest[record["topic"]] = max(newest[record["topic"]], record["time"])
            self._put(transaction, (one for one in records if not _is_below(one, filled)))
            for topic, time in newest.items():
                self._note(transaction, topic, start[topic][partition], end[topic][partition], time)
            self._forget(transaction, {(topic, partition): time for topic, time in before.items()}, partition)
            transaction.put(b"epoch", _packed(epoch), db=self._about)

    @contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction]:
        try:
            with self._env.begin(write=True) as transaction:
                yield transaction
        except lmdb.MapFullError as error:
            raise ContractError(
                f"the histories at {self._env.path()} are full ({LIMIT_BYTES} bytes): a topic has stood still in this "
                "partition, or a view of matches keeps too much; see docs/decisions/0018"
            ) from error

    def fill(self, records: Iterable[SideRecord]) -> None:
        """Put in records of before the generation."""
        with self._writing() as transaction:
            self._put(transaction, records)

    def begin(self, start: Vector, known: Progress, partition: int) -> None:
        """All of before the generation is in; so far time has come at its ``start``."""
        with self._env.begin(write=True) as transaction:
            for topic in start:
                at = start[topic][partition]
                self._note(transaction, topic, at, at, known.get((topic, partition), 0))
            transaction.put(b"epoch", _packed(-1), db=self._about)

    def _put(self, transaction: lmdb.Transaction, records: Iterable[SideRecord]) -> None:
        lines = [(self._name(line), line) for record in records for line in side_rows(record)]
        values = [
            (name, orjson.dumps((line["time"], line["guest"], line["group"], line["payload"]))) for name, line in lines
        ]
        times = [
            (name[:1] + _packed(line["time"]) + name[1:], b"")
            for name, line in lines
            if self._views[line["view"]].kept_seconds is not None
        ]
        transaction.cursor(db=self.records).putmulti(values)
        transaction.cursor(db=self._times).putmulti(times)

    def _name(self, line: Mapping[str, Any]) -> bytes:
        """Side, guest and group in front, so that a history is one stretch; then order and offset."""
        head = self.head(line["view"], line["side"], line["guest"])
        return head + _digest(line["group"]) + _packed(line["order"]) + _packed(line["kafka_offset"])

    def time(self, topic: str, offset: int) -> int:
        """The broker's time of the newest record below an offset of a topic; 0 where there is none."""
        with self._env.begin() as transaction:
            return self._time(transaction, topic, offset)

    def _time(self, transaction: lmdb.Transaction, topic: str, offset: int) -> int:
        cursor = transaction.cursor(db=self._about)
        head = b"time" + _digest(topic)
        there = cursor.set_range(head + _packed(offset + 1))
        if (cursor.prev() if there else cursor.last()) and _name(cursor).startswith(head):
            return _unpacked(bytes(cursor.value()))
        return 0

    def _note(self, transaction: lmdb.Transaction, topic: str, start: int, end: int, time: int) -> None:
        """Time by the end of an epoch; what was noted below its start nobody asks for any more."""
        head = b"time" + _digest(topic)
        transaction.put(head + _packed(end), _packed(time), db=self._about)
        cursor = transaction.cursor(db=self._about)
        names = [bytes(name) for name in cursor.iternext(keys=True, values=False)] if cursor.set_range(head) else []
        older = [name for name in names if name.startswith(head) and _unpacked(name[len(head) :]) <= start]
        for name in older[:-1]:
            transaction.delete(name, db=self._about)

    def head(self, view: str, side: str, guest: str) -> bytes:
        """How the names of all records of a side of a guest begin."""
        return self._numbers[view, side] + _digest(guest)

    def _forget(self, transaction: lmdb.Transaction, progress: Progress, partition: int) -> None:
        for (view, _), number in self._numbers.items():
            kept = self._views[view].kept_seconds
            if kept is None:
                continue
            limit = _packed(self._views[view].progress(progress, partition) - (kept + CLOCK_SLACK) * SECOND)
            cursor = transaction.cursor(db=self._times)
            there = cursor.set_range(number)
            while there and (name := _name(cursor))[:1] == number and name[1:9] < limit:
                transaction.delete(number + name[9:], db=self.records)
                there = cursor.delete() and bool(_name(cursor))

    def matches(
        self, records: Iterable[SideRecord], start: Vector, end: Vector, partition: int, filled: Vector
    ) -> Iterator[dict[str, str]]:
        """The matches (``MATCHED_DDL``) of the part of the log from ``start`` to ``end``; its ``records`` are in. One
        below ``filled`` that is not in is a copy, of which the generation did not see the first."""
        with self._env.begin() as transaction:
            triggering: dict[tuple[str, str], list[Seen]] = {}
            for line in (line for record in records for line in side_rows(record)):
                trigger = self._views[line["view"]].triggers.get(line["side"])
                if (
                    trigger
                    and not trigger.after_seconds
                    and (not _is_below(line, filled) or transaction.get(self._name(line), db=self.records) is not None)
                ):
                    triggering.setdefault((line["view"], line["guest"]), []).append(seen_in(line, start))
            for view in self._views.values():
                before, after = (
                    view.progress({(t, partition): self._time(transaction, t, at[t][partition]) for t in at}, partition)
                    for at in (start, end)
                )
                for side, trigger in view.triggers.items():
                    wait = trigger.after_seconds * SECOND
                    for seen in self._due(transaction, view, side, before - wait, after - wait, start, partition):
                        triggering.setdefault((view.name, seen.guest), []).append(seen)
            for (name, guest), seen_now in triggering.items():
                history = _Stored(self, transaction, self._views[name], guest, start, partition)
                for match in self._views[name].found(seen_now, history):
                    yield {"matched": name, "guest": guest, "payload": match}

    def _due(
        self,
        transaction: lmdb.Transaction,
        view: Matches,
        side: str,
        low: int,
        high: int,
        start: Vector,
        partition: int,
    ) -> Iterator[Seen]:
        """Records of a side with ``low`` <= time < ``high``, if the side waits at all."""
        number = self._numbers[view.name, side]
        cursor = transaction.cursor(db=self._times)
        if not view.triggers[side].after_seconds or not cursor.set_range(number + _packed(low)):
            return
        last = number + _packed(high)
        for name in map(bytes, cursor.iternext(keys=True, values=False)):
            if name >= last:
                return
            record = number + name[9:]
            yield self.seen(view, side, record, bytes(transaction.get(record, b"", db=self.records)), start, partition)

    def seen(self, view: Matches, side: str, name: bytes, value: bytes, start: Vector, partition: int) -> Seen:
        """The record of this name and value."""
        time, guest, group, payload = orjson.loads(value)
        order, offset = _unpacked(name[-16:-8]), _unpacked(name[-8:])
        new = offset >= start[f"changelog.{view.sides[side].entity}"][partition]
        return Seen(side, guest, partition, offset, time, order, group, payload, new)


class _Stored(Once):
    """The history of one guest for one view, in a store."""

    def __init__(
        self, store: Store, transaction: lmdb.Transaction, view: Matches, guest: str, start: Vector, partition: int
    ) -> None:
        super().__init__()
        self._store, self._transaction, self._view = store, transaction, view
        self._guest, self._start, self._partition = guest, start, partition

    def groups(self, side: str) -> list[str]:
        """See :class:`views.matching.History`."""
        head = self._store.head(self._view.name, side, self._guest)
        cursor = self._transaction.cursor(db=self._store.records)
        found = []
        there = cursor.set_range(head)
        while there and (name := _name(cursor)).startswith(head):
            found.append(str(orjson.loads(cursor.value())[2]))
            there = cursor.set_range(name[: len(head) + 16] + _LAST)
        return found

    def range(self, side: str, group: str, low: int, high: int) -> Iterator[Seen]:
        """See :class:`views.matching.History`."""
        head = self._store.head(self._view.name, side, self._guest) + _digest(group)
        cursor = self._transaction.cursor(db=self._store.records)
        if not cursor.set_range(head + _packed(low)):
            return
        last = head + _packed(high) + _LAST
        for name, value in cursor.iternext():
            if bytes(name) > last:
                return
            yield self._store.seen(self._view, side, bytes(name), bytes(value), self._start, self._partition)


_LAST = b"\xff" * 16
"""Sorts behind the order and offset of any record."""


_open: dict[Path, Store] = {}


def store(path: Path, views: Sequence[Matches]) -> Store:
    """The store at ``path``, opened once in each process."""
    if path not in _open:
        _open[path] = Store(path, views)
    return _open[path]


def _is_below(record: Mapping[str, Any], filled: Vector) -> bool:
    return bool(record["kafka_offset"] < filled[record["topic"]][record["kafka_partition"]])


def look(
    directory: Path, views: Sequence[Matches], epoch: int, start: Vector, end: Vector, filled: Vector
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs: ``kafka_partition``, ``records`` (what :func:`views.matching.side_record` makes), a row
    for each partition → the epoch's matches, ``MATCHED_DDL``. ``filled``: up to where histories were filled before the
    first epoch.

    Raises LostStateError if a store has not seen the epoch before this one.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partitions = {row["kafka_partition"]: row["records"] for batch in batches for row in batch.to_pylist()}
        for partition, texts in partitions.items():
            records = [orjson.loads(text) for text in texts]
            there = store(directory / str(partition), views)
            check(there, epoch - 1, directory / str(partition))
            there.put(records, epoch, start, end, partition, filled)
            faults.point("histories.noted")
            found = list(there.matches(records, start, end, partition, filled))
            if found:
                yield pa.RecordBatch.from_pylist(found, schema=MATCHED)

    return run


def check(there: Store, done: int, path: Path) -> None:
    """Raise LostStateError unless the last epoch in a store is ``done``, or the one after it, which was interrupted."""
    if there.epoch() not in (done, done + 1):
        raise LostStateError(
            "histories",
            f"{path}: the histories of guests stand at epoch {there.epoch()}, the checkpoint at {done}: they were lost "
            "or put back",
        )


def standing(path: Path, views: Sequence[Matches]) -> int | None:
    """The last epoch in the store at ``path``, which nobody has open in this process; None if it is lost."""
    if not is_whole(path):
        return None
    try:
        there = Store(path, views)
        try:
            return there.epoch()
        finally:
            there.close()
    except DAMAGE:
        return None


def sizes(directory: Path, views: Sequence[Matches]) -> dict[str, object]:
    """What the histories of all partitions take: ``records``, ``bytes``, ``limit_bytes``, and for each view how long a
    record is kept at least, in seconds (null: for ever)."""
    parts = [store(path, views).size() for path in sorted(directory.iterdir())]
    totals = {name: sum(part[name] for part in parts) for name in ("records", "bytes", "limit_bytes")}
    return {**totals, "kept_seconds": {view.name: view.kept_seconds for view in views}}
