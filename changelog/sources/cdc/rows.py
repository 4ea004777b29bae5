"""The rows that a snapshot has shown, and what the stream said of them meanwhile: on disk, for there may be many."""

import shutil
import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb
import orjson

LIMIT_BYTES = 1 << 36
"""The most that the file can grow to; it grows as it is needed."""

PAGE = 1_000

_LINE = struct.Struct(">q")
_READ, _STREAMED = b"r", b"s"


class Rows:
    """Rows by table, ref of their entity, and line (0 where a row is an entity). One directory, wiped when it begins.

    A row that came by the stream wins over one that was read, whenever they come: the stream is in the order of the
    commits, and what was read may be from before it.
    """

    def __init__(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._directory = directory
        # neither sync nor metasync: a killed service reads the stream again
        self._env = lmdb.open(str(directory), map_size=LIMIT_BYTES, max_dbs=16, sync=False)
        self._tables: dict[str, Any] = {}

    def read(self, table: str, rows: list[tuple[str, int, dict[str, Any]]]) -> None:
        """Rows (ref, line, columns) that were read: each is noted unless the stream has said something of it."""
        self._write(table, [(_name(ref, line), ref, row) for ref, line, row in rows], _READ)

    def stream(self, table: str, ref: str, line: int, row: dict[str, Any] | None) -> None:
        """A row as the stream says it is; None where it is deleted."""
        self._write(table, [(_name(ref, line), ref, row)], _STREAMED)

    def truncate(self, table: str) -> None:
        """All rows of a table are gone."""
        database = self._table(table)  # it is made in a transaction of its own
        with self._env.begin(write=True) as transaction:
            transaction.drop(database, delete=False)

    def all(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Ref and columns of every row that is there."""
        for _, ref, row in self._walk(table, b""):
            yield ref, row

    def of(self, table: str, ref: str) -> list[dict[str, Any]]:
        """The rows of one entity, in the order of their lines."""
        return [row for _, _, row in self._walk(table, _digest(ref))]

    def has(self, table: str, ref: str, line: int = 0) -> bool:
        """Whether a row is there."""
        with self._env.begin(db=self._table(table)) as transaction:
            value = transaction.get(_name(ref, line))
        return value is not None and orjson.loads(bytes(value)[1:])[1] is not None

    def close(self) -> None:
        """Give the files back."""
        self._env.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _table(self, table: str) -> Any:
        if table not in self._tables:
            self._tables[table] = self._env.open_db(table.encode())
        return self._tables[table]

    def _write(self, table: str, rows: list[tuple[bytes, str, dict[str, Any] | None]], how: bytes) -> None:
        database = self._table(table)
        with self._env.begin(write=True, db=database) as transaction:
            for name, ref, row in rows:
                if how == _READ and bytes(transaction.get(name) or b"").startswith(_STREAMED):
                    continue
                transaction.put(name, how + orjson.dumps([ref, row]))

    def _walk(self, table: str, head: bytes) -> Iterator[tuple[bytes, str, dict[str, Any]]]:
        """What is there and begins with ``head``, a page at a time, so that others may write meanwhile."""
        database, after = self._table(table), head
        while True:
            page: list[tuple[bytes, bytes]] = []
            with self._env.begin(db=database) as transaction:
                cursor = transaction.cursor()
                there = cursor.set_range(after)
                while there and len(page) < PAGE and bytes(cursor.key()).startswith(head):
                    page.append((bytes(cursor.key()), bytes(cursor.value())))
                    there = cursor.next()
            for name, value in page:
                ref, row = orjson.loads(value[1:])
                if row is not None:
                    yield name, ref, row
            if len(page) < PAGE:
                return
            after = page[-1][0] + b"\0"


def _digest(ref: str) -> bytes:
    return blake2b(ref.encode(), digest_size=16).digest()


def _name(ref: str, line: int) -> bytes:
    return _digest(ref) + _LINE.pack(line)
