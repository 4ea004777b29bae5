"""Hadoop SequenceFile, version 6, with BytesWritable keys and values.

Reads every form that Secor was seen to write: uncompressed, RECORD and BLOCK, with DefaultCodec (zlib) or GzipCodec.
Writes BLOCK with DefaultCodec, which needs no native library anywhere. Format: ``org.apache.hadoop.io.SequenceFile``
and ``WritableUtils`` of Apache Hadoop.
"""

import os
import struct
import zlib
from collections.abc import Iterator

from runtime.errors import ArchiveError

_CLASS = b"org.apache.hadoop.io.BytesWritable"
_DEFAULT_CODEC = b"org.apache.hadoop.io.compress.DefaultCodec"
_GZIP_CODEC = b"org.apache.hadoop.io.compress.GzipCodec"
_HEADER = b"SEQ\x06" + bytes([len(_CLASS)]) + _CLASS + bytes([len(_CLASS)]) + _CLASS
_SYNC_ESCAPE = b"\xff\xff\xff\xff"
_SYNC_SIZE = 16

BLOCK_BYTES = 1_000_000
"""Raw bytes after which a block is closed, as Hadoop does by default."""

MOST_BYTES = 128 * 2**20
"""What a compressed buffer may hold. Writers close a block behind the record that fills it, and the log takes no record
of more than 16 MiB: more is made to fill a reader's memory."""

MOST_LENGTHS = 8 * 2**20
"""The same of a buffer of lengths: a block of a megabyte has less than a hundredth of these."""

COMPRESSION = 1
"""zlib's fastest level: on JSON it costs a quarter of the default level's time for about a fifth more bytes, and the
columnar archive is what is kept compact."""


def vint(number: int) -> bytes:
    """A non-negative number as ``WritableUtils.writeVInt`` writes it."""
    if number <= 127:
        return bytes([number])
    size = (number.bit_length() + 7) // 8
    return bytes([256 - 112 - size]) + number.to_bytes(size, "big")


class Writer:
    """Builds a file in memory: ``append`` records, then ``close`` once to get its bytes."""

    def __init__(self) -> None:
        self._sync = os.urandom(_SYNC_SIZE)
        codec = bytes([len(_DEFAULT_CODEC)]) + _DEFAULT_CODEC
        self._parts = [_HEADER + b"\x01\x01" + codec + b"\x00\x00\x00\x00" + self._sync]
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._pending = 0

    def append(self, key: bytes, value: bytes) -> None:
        """Add a record. Blocks close by themselves as they fill."""
        self._keys.append(key)
        self._values.append(value)
        self._pending += len(key) + len(value) + 8
        if self._pending >= BLOCK_BYTES:
            self._close_block()

    def close(self) -> bytes:
        """The whole file."""
        if self._keys:
            self._close_block()
        return b"".join(self._parts)

    def _close_block(self) -> None:
        self._parts += [_SYNC_ESCAPE, self._sync, vint(len(self._keys))]
        for column in (self._keys, self._values):
            sizes = [len(item) for item in column]
            coded = {size: vint(size + 4) for size in set(sizes)}
            prefix = {size: struct.pack(">i", size) for size in coded}
            lengths = b"".join([coded[size] for size in sizes])
            data = b"".join([part for size, item in zip(sizes, column, strict=True) for part in (prefix[size], item)])
            for buffer in (lengths, data):
                packed = zlib.compress(buffer, COMPRESSION)
                self._parts += [vint(len(packed)), packed]
            column.clear()
        self._pending = 0


def read(data: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a file, in order.

    ``name`` is used in errors. Raises ArchiveError for a file that is empty, cut off, or not in this format; pairs
    before the damage are yielded first. A file that was cut exactly between two blocks (or, where not in blocks, two
    records) is a correct shorter file: the format has no end mark.
    """
    if not data:
        raise ArchiveError(f"{name}: the object is empty; what was meant to be in it has to come from elsewhere")
    reader = _Reader(data, name)
    compressed, block, codec = reader.header()
    if compressed and codec not in (_DEFAULT_CODEC, _GZIP_CODEC):
        raise ArchiveError(f"{name}: compressed with {codec.decode(errors='replace')}, which is not supported")
    return reader.blocks() if block else reader.records(compressed)


class _Reader:
    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0
        self._sync = b""

    def _fail(self, what: str) -> ArchiveError:
        return ArchiveError(f"{self._name}: {what} at byte {self._at} of {len(self._data)}")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise self._fail(f"cut off: {size} bytes are missing")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _int(self) -> int:
        number: int = struct.unpack(">i", self._take(4))[0]
        return number

    def _vint(self) -> int:
        first = self._take(1)[0]
        if first <= 127:
            return first
        size = 256 - 112 - first
        if not 1 <= size <= 8:
            raise self._fail("not a length")
        return int.from_bytes(self._take(size), "big")

    def header(self) -> tuple[bool, bool, bytes]:
        if self._take(4) != b"SEQ\x06":
            self._at = 0
            raise self._fail("not a SequenceFile of version 6")
        for what in ("key", "value"):
            if (found := self._take(self._vint())) != _CLASS:
                raise self._fail(f"{what} class is {found.decode(errors='replace')}, not BytesWritable")
        compressed, block = self._take(1) != b"\x00", self._take(1) != b"\x00"
        codec = self._take(self._vint()) if compressed else b""
        for _ in range(2 * self._int()):
            self._take(self._vint())
        self._sync = self._take(_SYNC_SIZE)
        return compressed, block, codec

    def _check_sync(self) -> None:
        if self._take(_SYNC_SIZE) != self._sync:
            raise self._fail("wrong sync marker")

    def _inflate(self, data: bytes, most: int = MOST_BYTES) -> bytes:
        try:
            inflater = zlib.decompressobj(wbits=47)  # zlib or gzip, whichever it is
            raw = inflater.decompress(data, most)
        except zlib.error as error:
            raise self._fail(f"cannot be decompressed ({error})") from error
        if inflater.unconsumed_tail:
            raise self._fail(f"a compressed buffer holds more than {most >> 20} MiB")
        if not inflater.eof:
            raise self._fail("cut off inside a compressed buffer")
        return raw

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        while self._at < len(self._data):
            if self._take(4) != _SYNC_ESCAPE:
                raise self._fail("no block begins")
            self._check_sync()
            count = self._vint()
            keys, values = (
                self._column(
                    self._inflate(self._take(self._vint()), MOST_LENGTHS), self._inflate(self._take(self._vint()))
                )
                for _ in range(2)
            )
            if len(keys) != count or len(values) != count:
                raise self._fail(f"block says {count} records and holds {len(keys)} keys and {len(values)} values")
            yield from zip(keys, values, strict=True)

    def _column(self, lengths: bytes, data: bytes) -> list[bytes]:
        found, at, i, total = [], 0, 0, len(lengths)
        while i < total:
            size = lengths[i]
            i += 1
            if size > 127:
                width = 144 - size
                if not 1 <= width <= 8:
                    raise self._fail("a block has a length that is no number")
                size = int.from_bytes(lengths[i : i + width], "big")
                i += width
            end = at + size
            if size < 4 or end > len(data):
                raise self._fail("a block has a length that its data has not")
            found.append(data[at + 4 : end])
            at = end
        if at != len(data):
            raise self._fail("a block's lengths do not add up to its data")
        return found

    def records(self, compressed: bool) -> Iterator[tuple[bytes, bytes]]:
        while self._at < len(self._data):
            size = self._int()
            if size == -1:
                self._check_sync()
                if self._at == len(self._data):
                    return
                size = self._int()
            key_size = self._int()
            key, value = self._take(key_size), self._take(size - key_size)
            if compressed:
                value = self._inflate(value)
            if len(key) < 4 or len(value) < 4:
                raise self._fail("a record without its length")
            yield key[4:], value[4:]
