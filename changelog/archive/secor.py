"""What Secor puts into a SequenceFile, and what it calls the object.

Formats: Secor's ``MessagePackSequenceFileReaderWriterFactory`` and ``LogFilePath``. Not stored at all: headers, and
whether a missing key or value was null or empty.
"""

import re
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgpack

from changelog.archive.sequencefile import read
from runtime.errors import ArchiveError

GENERATION, SECORS_GENERATION = 1, 2
"""The first number in an object's name. Secor replaces objects of its own generation, so no other object has it."""

EXTENSION = ".deflate"
_NAME = re.compile(
    r"(?:^|/)(?P<topic>[^/]+)/dt=(?P<day>[\d-]{10})/hr=(?P<hour>\d\d)/(?P<generation>\d+)_(?P<partition>\d+)_(?P<offset>\d+)"
)


class ArchivedRecord(NamedTuple):
    """A record of the log as the archive keeps it. ``value`` is empty for a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes


def pack_key(offset: int, timestamp_ms: int, key: bytes | None) -> bytes:
    """The SequenceFile key: a MessagePack map 1 → offset, 3 → timestamp (64 bits always), 2 → Kafka key if any."""
    head = b"\x83\x01" if key else b"\x82\x01"
    if offset < 0x80:
        number = bytes([offset])
    elif offset < 0x100:
        number = b"\xcc" + bytes([offset])
    elif offset < 0x10000:
        number = b"\xcd" + offset.to_bytes(2, "big")
    elif offset < 0x100000000:
        number = b"\xce" + offset.to_bytes(4, "big")
    else:
        number = b"\xcf" + offset.to_bytes(8, "big")
    time = b"\x03\xcf" + timestamp_ms.to_bytes(8, "big")
    if not key:
        return head + number + time
    size = len(key)
    if size < 0x100:
        length = b"\x02\xc4" + bytes([size])
    elif size < 0x10000:
        length = b"\x02\xc5" + size.to_bytes(2, "big")
    else:
        length = b"\x02\xc6" + struct.pack(">I", size)
    return head + number + time + length + key


def read_object(data: bytes, name: str) -> Iterator[ArchivedRecord]:
    """The records of an object, in order. Raises ArchiveError as :func:`read`, and for a key that is not Secor's."""
    unpack = msgpack.unpackb
    for packed, value in read(data, name):
        try:
            fields: Any = unpack(packed, raw=True, strict_map_key=False)
            if type(fields) is not dict:
                raise ValueError("not a map")
            offset, timestamp, key = fields[1], fields[3], fields.get(2)
            if type(offset) is not int or offset < 0 or type(timestamp) is not int:
                raise ValueError("no offset or no timestamp")
            if key is not None and type(key) is not bytes:
                raise ValueError("the Kafka key is not bytes")
            record = ArchivedRecord(offset, timestamp, key, value)
        except (ValueError, KeyError, TypeError, IndexError, msgpack.UnpackException) as error:
            raise ArchiveError(f"{name}: a record's key is not Secor's: {packed[:40]!r} ({error})") from error
        yield record


def hour_of(timestamp_ms: int) -> int:
    """Hours since 1970 in UTC: records of one hour share an object."""
    return timestamp_ms // 3_600_000


def object_name(prefix: str, topic: str, partition: int, hour: int, offset: int, generation: int = GENERATION) -> str:
    """``<prefix>/<topic>/dt=YYYY-MM-DD/hr=HH/<generation>_<partition>_<offset, 20 digits>.deflate``."""
    time = datetime.fromtimestamp(hour * 3600, UTC)
    return f"{prefix}/{topic}/dt={time:%Y-%m-%d}/hr={time:%H}/{generation}_{partition}_{offset:020d}{EXTENSION}"


class ObjectName(NamedTuple):
    """What an object's name says. ``hour`` as :func:`hour_of` counts; no record has an offset below ``start``."""

    topic: str
    generation: int
    partition: int
    hour: int
    start: int


def parsed(name: str) -> ObjectName:
    """The parts of an object's name. Raises ValueError if it is none."""
    match = _NAME.search(name)
    if match is None:
        raise ValueError(f"{name} is no archive object")
    begin = datetime.strptime(f"{match['day']} {match['hour']} +0000", "%Y-%m-%d %H %z")
    hour = hour_of(int(begin.timestamp()) * 1000)
    return ObjectName(match["topic"], int(match["generation"]), int(match["partition"]), hour, int(match["offset"]))


def start_of(name: str) -> int:
    """The offset in an object's name: none of its records has a lower one. Raises ValueError if it has none."""
    return parsed(name).start


def hour_in(name: str) -> int:
    """The hour in an object's name, counted as :func:`hour_of` does. Raises ValueError if it has none."""
    return parsed(name).hour


def partition_of(name: str) -> int | None:
    """The partition in an object's name (the topic and the partition are stored nowhere else); None if it has none."""
    match = _NAME.search(name)
    return int(match["partition"]) if match else None
