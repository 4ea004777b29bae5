"""SequenceFiles: what is written is read, and no damage goes unnoticed."""

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.archive import sequencefile
from changelog.archive.sequencefile import MOST_BYTES, Writer, read, vint
from runtime.errors import ArchiveError
from tests.unit.changelog.archive.reading import read_until_error

pytestmark = pytest.mark.unit

Pairs = list[tuple[bytes, bytes]]

NAME = "raw/changelog.order/dt=2026-01-31/hr=12/1_0_00000000000000000000.deflate"
HEADER = 139
SYNC = slice(123, 139)
PAIRS: Pairs = [(b"key %d" % n, b"value %d" % n * 9) for n in range(10)]
BLOCK_SIZES = st.sampled_from([1, 60, 400, 1_000_000])
MANY_PAIRS = st.lists(st.tuples(st.binary(max_size=80), st.binary(max_size=300)), max_size=20)


def written(pairs: Pairs, block_bytes: int = 1_000_000) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequencefile, "BLOCK_BYTES", block_bytes)
        writer = Writer()
        for key, value in pairs:
            writer.append(key, value)
        return writer.close()


@given(pairs=MANY_PAIRS, block_bytes=BLOCK_SIZES)
def test_what_is_written_is_read(pairs: Pairs, block_bytes: int) -> None:
    assert list(read(written(pairs, block_bytes), NAME)) == pairs


@pytest.mark.parametrize("size", [0, 1, 123, 124, 251, 252, 65_531, 65_532, 1_200_000])
def test_keys_and_values_of_every_length_class_survive(size: int) -> None:
    pairs = [(b"k" * size, b""), (b"", b"v" * size), (b"k", b"v")]
    assert list(read(written(pairs), NAME)) == pairs


@pytest.mark.parametrize(("block_bytes", "blocks"), [(1_000_000, 1), (1, 10)])
def test_a_block_closes_when_it_is_full(block_bytes: int, blocks: int) -> None:
    data = written(PAIRS, block_bytes)
    assert data[HEADER:].count(b"\xff\xff\xff\xff" + data[SYNC]) == blocks


def test_every_file_has_a_sync_marker_of_its_own() -> None:
    assert written(PAIRS)[SYNC] != written(PAIRS)[SYNC]


def test_a_file_of_no_records_is_a_header_and_reads_as_none() -> None:
    data = written([])
    assert len(data) == HEADER
    assert list(read(data, NAME)) == []


@pytest.mark.parametrize(
    ("number", "coded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8f80"),
        (255, "8fff"),
        (256, "8e0100"),
        (65_536, "8d010000"),
        (1 << 24, "8c01000000"),
    ],
)
def test_a_length_is_coded_as_hadoop_codes_it(number: int, coded: str) -> None:
    assert vint(number).hex() == coded


def test_an_empty_object_is_an_error_at_once() -> None:
    with pytest.raises(ArchiveError, match=f"^{NAME}: the object is empty"):
        read(b"", NAME)


@given(pairs=MANY_PAIRS, block_bytes=BLOCK_SIZES, data=st.data())
def test_a_cut_is_an_error_or_falls_between_two_blocks(pairs: Pairs, block_bytes: int, data: st.DataObject) -> None:
    whole = written(pairs, block_bytes)
    cut = data.draw(st.integers(0, len(whole) - 1), label="cut")
    found, error = read_until_error(read, whole[:cut], NAME)
    assert found == pairs[: len(found)]
    if not error:
        assert whole[cut : cut + 20] == b"\xff\xff\xff\xff" + whole[SYNC]


def test_a_cut_at_any_byte_of_one_block_is_an_error() -> None:
    whole = written(PAIRS)
    for cut in range(HEADER + 1, len(whole)):
        assert read_until_error(read, whole[:cut], NAME)[1], f"cut at byte {cut}"


@given(pairs=MANY_PAIRS, block_bytes=BLOCK_SIZES, data=st.data())
def test_a_wrong_byte_is_an_error_or_changes_nothing(pairs: Pairs, block_bytes: int, data: st.DataObject) -> None:
    damaged = bytearray(written(pairs, block_bytes))
    at = data.draw(st.integers(0, len(damaged) - 1), label="at")
    damaged[at] ^= data.draw(st.integers(1, 255), label="flipped")
    found, error = read_until_error(read, bytes(damaged), NAME)
    assert found == (pairs if not error else pairs[: len(found)])


def test_records_before_the_damage_are_yielded_first() -> None:
    data = bytearray(written(PAIRS, block_bytes=1))
    last_sync = data.rindex(data[SYNC])
    data[last_sync] ^= 1
    found, error = read_until_error(read, bytes(data), NAME)
    assert found == PAIRS[:-1]
    assert "wrong sync marker" in error


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (b"SEQ\x06", b"SEQ\x05", "not a SequenceFile of version 6"),
        (b"SEQ\x06", b"\x1f\x8b\x08\x00", "not a SequenceFile of version 6"),
        (b"io.BytesWritable", b"io.LongWritable1", "key class is org.apache.hadoop.io.LongWritable1"),
        (b"DefaultCodec", b"SnappyCodec1", "SnappyCodec1, which is not supported"),
        (b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe", "no block begins"),
    ],
)
def test_what_is_not_such_a_file_is_refused_by_what_is_wrong(good: bytes, bad: bytes, message: str) -> None:
    found, error = read_until_error(read, written(PAIRS).replace(good, bad, 1), NAME)
    assert found == []
    assert message in error


def test_a_block_that_holds_other_than_it_says_is_refused() -> None:
    data = bytearray(written(PAIRS))
    data[HEADER + 20] += 1  # the number of records, after the sync marker
    _, error = read_until_error(read, bytes(data), NAME)
    assert "block says 11 records and holds 10 keys and 10 values" in error


def test_a_buffer_without_its_checksum_is_refused_although_its_data_is_whole() -> None:
    data = written(PAIRS)
    values = zlib.compress(
        b"".join(struct.pack(">i", len(value)) + value for _, value in PAIRS), sequencefile.COMPRESSION
    )
    assert data.endswith(vint(len(values)) + values)
    shortened = data.removesuffix(vint(len(values)) + values) + vint(len(values) - 4) + values[:-4]
    found, error = read_until_error(read, shortened, NAME)
    assert found == []
    assert "cut off inside a compressed buffer" in error


def block(*buffers: bytes, count: int = 1) -> bytes:
    """A file of one block, of its four buffers: lengths of keys, keys, lengths of values, values."""
    packed = b"".join(vint(len(one)) + one for one in map(zlib.compress, buffers))
    header = written([])
    return header + b"\xff\xff\xff\xff" + header[SYNC] + vint(count) + packed


def test_a_block_is_read_by_its_lengths() -> None:
    data = block(b"\x05", b"\0\0\0\1k", b"\x06", b"\0\0\0\2vv")
    assert list(read(data, NAME)) == [(b"k", b"vv")]


@pytest.mark.parametrize("first", [*range(4), 9, *range(128, 136), *range(144, 256)])
def test_a_length_that_is_no_number_or_holds_no_record_is_refused(first: int) -> None:
    """Some would lead back to before themselves, for ever."""
    found, error = read_until_error(read, block(bytes([first]), b"", b"\x04", bytes(4)), NAME)
    assert found == []
    assert f"a block has a length that {'its data has not' if first < 128 else 'is no number'}" in error


@given(lengths=st.binary(max_size=30), data=st.binary(max_size=60), count=st.integers(0, 20))
def test_whatever_lengths_say_reading_ends(lengths: bytes, data: bytes, count: int) -> None:
    found, error = read_until_error(read, block(lengths, data, lengths, data, count=count), NAME)
    assert (len(found) == count and sum(4 + len(key) for key, _ in found) == len(data)) or error


@pytest.mark.parametrize("which", range(4))
def test_a_small_object_that_holds_gigabytes_is_refused_before_they_are_there(which: int) -> None:
    buffers = [b""] * 4
    buffers[which] = b"\4" * (MOST_BYTES + 1)
    made = block(*buffers)
    assert len(made) < MOST_BYTES / 200
    tracemalloc.start()
    with pytest.raises(ArchiveError, match=r"a-bomb: a compressed buffer holds more than (8|128) MiB"):
        list(read(made, "a-bomb"))
    assert tracemalloc.get_traced_memory()[1] < 2 * MOST_BYTES + 10_000_000
    tracemalloc.stop()


def test_empty_records_by_the_million_are_refused_before_they_are_there() -> None:
    made = block(b"\4" * MOST_BYTES, bytes(4 * MOST_BYTES // 16), b"", b"")
    with pytest.raises(ArchiveError, match="a compressed buffer holds more than 8 MiB"):
        list(read(made, NAME))
