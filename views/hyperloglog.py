"""HyperLogLog in the bytes of Trino's own type: 4096 buckets, standard error 1.6 %.

An *entry* is what the sketch keeps of one value, in 32 bits: the first 26 bits of its 64-bit hash, and how many zeros
follow them. A sketch of few entries is written as they are (``SPARSE``, estimated almost exactly), a larger one as the
highest rank of each bucket (``DENSE``). Merging takes the highest rank, so it may be repeated, in any order.

The bytes are those of ``io.airlift.stats.cardinality`` (SparseHll and DenseHll, version 2), which Trino reads with
``CAST(x AS HyperLogLog)``.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

INDEX_BITS = 12
BUCKETS = 1 << INDEX_BITS
SPARSE, DENSE = 2, 3
PREFIX_BITS = 26
RANK_BITS = 6
MAX_SPARSE = 516
"""Entries up to which a sketch is sparse. Trino changes over at the same number, so that it makes no difference to an
estimate where, and in which pieces, sketches were merged."""

MAX_DELTA = 15

Entries = NDArray[np.uint32]
Ranks = NDArray[np.int16]


def entries_of(hashes: NDArray[np.uint64]) -> Entries:
    """The entries of 64-bit hashes."""
    prefix = (hashes >> np.uint64(64 - PREFIX_BITS)).astype(np.uint32)
    rest = hashes << np.uint64(PREFIX_BITS)
    zeros = np.full(len(hashes), 64 - PREFIX_BITS, np.uint32)
    found = rest != 0
    # frexp of the upper bits: exact below 2**53, and 38 bits are left
    _, exponent = np.frexp((rest[found] >> np.uint64(PREFIX_BITS)).astype(np.float64))
    zeros[found] = 64 - PREFIX_BITS - exponent
    return (prefix << np.uint32(RANK_BITS)) | zeros


def encode(entries: Entries) -> bytes:
    """Entries, in any order and as often as they come → bytes of a sketch."""
    kept = _highest(entries)
    if len(kept) > MAX_SPARSE:
        return _dense(_ranks(kept))
    head = bytes([SPARSE, INDEX_BITS]) + len(kept).to_bytes(2, "little")
    return head + kept.astype("<u4").tobytes()


def merge(sketches: Iterable[bytes]) -> bytes:
    """One sketch of all values that any of the sketches saw."""
    entries: list[Entries] = []
    ranks: Ranks | None = None
    for sketch in sketches:
        if sketch[0] == SPARSE:
            entries.append(np.frombuffer(sketch, "<u4", offset=4).astype(np.uint32))
        else:
            read = _read_dense(sketch)
            ranks = read if ranks is None else np.maximum(ranks, read)
    joined = np.concatenate(entries) if entries else np.array([], np.uint32)
    if ranks is None:
        return encode(joined)
    return _dense(np.maximum(ranks, _ranks(joined)))


def encoded(hashes: Column) -> Column:
    """A column of arrays of 64-bit hashes → a column of sketches. Null stays null."""
    return _encoded(hashes)


def merged(sketches: Column) -> Column:
    """A column of arrays of sketches → a column of sketches."""
    return _merged(sketches)


@F.udf(BinaryType(), useArrow=False)
def _encoded(hashes: list[int] | None) -> bytes | None:
    return None if hashes is None else encode(entries_of(np.array(hashes, np.int64).view(np.uint64)))


@F.udf(BinaryType(), useArrow=False)
def _merged(sketches: list[bytes] | None) -> bytes | None:
    return None if sketches is None else merge(sketches)


def _highest(entries: Entries) -> Entries:
    """Sorted, for each prefix the highest number of zeros."""
    ordered = np.unique(entries)
    last = np.ones(len(ordered), bool)
    prefix = ordered >> np.uint32(RANK_BITS)
    last[:-1] = prefix[1:] != prefix[:-1]
    return ordered[last]


def _ranks(entries: Entries) -> Ranks:
    """The rank of each bucket: one more than the zeros that follow its index in the hash; 0 for none."""
    ranks = np.zeros(BUCKETS, np.int16)
    inside = PREFIX_BITS - INDEX_BITS
    index = entries >> np.uint32(32 - INDEX_BITS)
    follow = (entries >> np.uint32(RANK_BITS)) & np.uint32((1 << inside) - 1)
    _, exponent = np.frexp(follow.astype(np.float64))
    beyond = inside + (entries & np.uint32((1 << RANK_BITS) - 1)).astype(np.int64)
    zeros = np.where(follow == 0, beyond, inside - exponent)
    np.maximum.at(ranks, index, (zeros + 1).astype(np.int16))
    return ranks


def _dense(ranks: Ranks) -> bytes:
    baseline = int(ranks.min())
    deltas = ranks - baseline
    small = np.minimum(deltas, MAX_DELTA).astype(np.uint8)
    over = np.flatnonzero(deltas > MAX_DELTA)
    return b"".join((
        bytes([DENSE, INDEX_BITS, baseline]),
        ((small[0::2] << 4) | small[1::2]).tobytes(),
        len(over).to_bytes(2, "little"),
        over.astype("<u2").tobytes(),
        (deltas[over] - MAX_DELTA).astype(np.uint8).tobytes(),
    ))  # fmt: skip


def _read_dense(sketch: bytes) -> Ranks:
    packed = np.frombuffer(sketch, np.uint8, BUCKETS // 2, 3)
    ranks = np.empty(BUCKETS, np.int16)
    ranks[0::2], ranks[1::2] = packed >> 4, packed & MAX_DELTA
    start = 3 + BUCKETS // 2
    count = int.from_bytes(sketch[start : start + 2], "little")
    over = np.frombuffer(sketch, "<u2", count, start + 2)
    ranks[over] += np.frombuffer(sketch, np.uint8, count, start + 2 + 2 * count)
    return ranks + np.int16(sketch[2])
