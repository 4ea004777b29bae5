"""Secor's keys and names, byte by byte."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.archive.secor import ArchivedRecord, hour_of, object_name, pack_key, partition_of, read_object
from changelog.archive.sequencefile import Writer
from tests.unit.changelog.archive.reading import read_until_error

pytestmark = pytest.mark.unit

NAME = "raw/changelog.order/dt=2026-01-31/hr=12/1_0_00000000000000000000.deflate"
NOW = 1_795_221_339_389  # a timestamp of today's size: Secor writes it in 64 bits
WIDTHS = [0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF]
OFFSETS = st.one_of(st.sampled_from(WIDTHS), st.integers(0, 0x7FFFFFFFFFFFFFFF))
TIMES = st.integers(0, 0x7FFFFFFFFFFFFFFF)
KEYS = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([255, 256, 65_535, 65_536]).map(bytes))
PACKED = st.recursive(
    st.none() | st.integers(-1000, 1000) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 4), inner, max_size=4),
    max_leaves=6,
).map(msgpack.packb)


def stored(*keys: bytes) -> bytes:
    writer = Writer()
    for key in keys:
        writer.append(key, b"{}")
    return writer.close()


def unpacked(packed: bytes) -> dict[int, int | bytes]:
    fields: dict[int, int | bytes] = msgpack.unpackb(packed, raw=True, strict_map_key=False)
    return fields


def test_the_key_that_secor_wrote() -> None:
    assert pack_key(80, 1_795_221_339_389, b"g-00021").hex() == "83015003cf000001a1fb87bcfd02c407672d3030303231"


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("offset", WIDTHS)
def test_a_key_is_what_msgpack_itself_writes(offset: int, length: int) -> None:
    key = b"k" * length
    fields = {1: offset, 3: 1 << 40, **({2: key} if key else {})}
    assert pack_key(offset, 1 << 40, key) == msgpack.packb(fields).replace(
        msgpack.packb(1 << 40), b"\xcf" + (1 << 40).to_bytes(8, "big"), 1
    )


@given(offset=OFFSETS, time=TIMES, key=KEYS)
def test_unpacking_gives_back_what_was_packed(offset: int, time: int, key: bytes | None) -> None:
    expected: dict[int, int | bytes] = {1: offset, 3: time}
    if key:
        expected[2] = key
    fields = unpacked(pack_key(offset, time, key))
    assert fields == expected
    assert list(fields) == [1, 3, 2][: len(fields)], "the fields are in another order than Secor's"


@given(records=st.lists(st.tuples(OFFSETS, TIMES, KEYS, st.binary(max_size=40)), max_size=8))
def test_records_come_back_and_an_empty_key_as_none(records: list[tuple[int, int, bytes | None, bytes]]) -> None:
    writer = Writer()
    for offset, time, key, value in records:
        writer.append(pack_key(offset, time, key), value)
    expected = [ArchivedRecord(offset, time, key or None, value) for offset, time, key, value in records]
    assert list(read_object(writer.close(), NAME)) == expected


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"order-1", id="text"),
        pytest.param(b"\xc0", id="nil"),
        pytest.param(b"\x81\x01\x05", id="no timestamp"),
        pytest.param(pack_key(5, NOW, b"g-1")[:-1], id="cut off"),
        pytest.param(pack_key(5, NOW, b"g-1") + b"\x00", id="too long"),
        pytest.param(b"\x90", id="empty list"),
        pytest.param(b"\x94\x00\x01\x02\x03", id="list"),
        pytest.param(b"\xc4\x05hello", id="bytes"),
        pytest.param(b"\x82\x01\xc0\x03\xc0", id="nulls for numbers"),
        pytest.param(b"\x82\x01\xff\x03\x05", id="negative offset"),
        pytest.param(b"\x83\x01\x05\x03\x05\x02\x07", id="number for a key"),
    ],
)
def test_a_key_that_is_not_secors_is_an_error_after_the_good_records(key: bytes) -> None:
    found, error = read_until_error(read_object, stored(pack_key(4, NOW, b"g-1"), key), NAME)
    assert [record.offset for record in found] == [4]
    assert "a record's key is not Secor's" in error


@given(key=PACKED)
def test_no_key_raises_anything_but_an_archive_error(key: bytes) -> None:
    found, error = read_until_error(read_object, stored(key), NAME)
    assert len(found) == (not error)


@pytest.mark.parametrize(
    ("milliseconds", "name"),
    [
        (0, "raw/changelog.order/dt=1970-01-01/hr=00/1_3_00000000000000000042.deflate"),
        (1_795_215_599_999, "raw/changelog.order/dt=2026-11-20/hr=22/1_3_00000000000000000042.deflate"),
        (1_795_215_600_000, "raw/changelog.order/dt=2026-11-20/hr=23/1_3_00000000000000000042.deflate"),
    ],
)
def test_an_object_is_named_by_the_hour_in_utc(milliseconds: int, name: str) -> None:
    assert object_name("raw", "changelog.order", 3, hour_of(milliseconds), 42) == name


@given(partition=st.integers(0, 100_000), offset=st.integers(0, 10**20 - 1), hour=st.integers(0, 1_000_000))
def test_the_partition_is_read_from_the_name(partition: int, offset: int, hour: int) -> None:
    assert partition_of(object_name("a/b", "changelog.event", partition, hour, offset)) == partition


@given(offsets=st.lists(st.integers(0, 10**20 - 1), min_size=2, max_size=5))
def test_names_of_one_hour_sort_by_offset(offsets: list[int]) -> None:
    names = {offset: object_name("raw", "changelog.order", 1, 0, offset) for offset in offsets}
    assert sorted(offsets) == sorted(offsets, key=lambda offset: names[offset])


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("raw/changelog.order/dt=2026-11-20/hr=23/1_2_00000000000000000196.gz", 2),
        ("raw/changelog.order/dt=2026-11-20/hr=23/1_2_00000000000000000196", 2),
        ("raw/changelog.order/dt=2026-11-20/hr=23/_SUCCESS", None),
        ("raw/changelog.order/1_2_00000000000000000196", None),
        ("", None),
    ],
)
def test_other_objects_have_no_partition(name: str, partition: int | None) -> None:
    assert partition_of(name) == partition
