"""Objects that the real Secor wrote, against the messages that went in."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from changelog.archive.secor import ArchivedRecord, hour_of, object_name, pack_key, partition_of, read_object
from changelog.archive.sequencefile import read
from runtime.errors import ArchiveError
from tests.unit.changelog.archive.reading import read_until_error
from tests.unit.changelog.shared_data import shared_data

pytestmark = pytest.mark.unit

VARIANTS = [
    pytest.param("objects/raw_deflate", 2706, id="blocks, DefaultCodec"),
    pytest.param("objects/raw_logs", 2706, id="blocks, GzipCodec"),
    pytest.param("objects/raw_plain", 2706, id="records, DefaultCodec"),
    pytest.param("uncompressed-objects/objects/raw_none", 706, id="uncompressed"),
]


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


def messages(name: str) -> dict[Place, ArchivedRecord]:
    """What went in, as the archive can keep it: a null or empty key is None, a null value is empty."""
    found: dict[Place, ArchivedRecord] = {}
    for line in shared_data(name).read_text().splitlines():
        message = json.loads(line)
        key, value = (base64.b64decode(message[field] or "") for field in ("key", "value"))
        place = Place(message["topic"], message["partition"], message["offset"])
        found[place] = ArchivedRecord(message["offset"], message["timestamp"], key or None, value)
    return found


def objects(folder: str) -> Iterator[tuple[str, bytes]]:
    """(key, bytes) of every object below a folder, by name; the key begins with the folder's last part."""
    root = shared_data(folder)
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def archived(folder: str) -> list[tuple[Place, ArchivedRecord]]:
    found: list[tuple[Place, ArchivedRecord]] = []
    for name, data in objects(folder):
        partition = partition_of(name)
        assert partition is not None, name
        found += [(Place(name.split("/")[1], partition, record.offset), record) for record in read_object(data, name)]
    return found


@pytest.mark.parametrize(("folder", "count"), VARIANTS)
def test_the_archive_holds_exactly_the_messages_that_went_in(folder: str, count: int) -> None:
    found = archived(f"secor/{folder}")
    assert len(found) == count
    topics = {place.topic for place, _ in found}
    sent = messages("secor/messages.jsonl")
    assert dict(found) == {place: record for place, record in sent.items() if place.topic in topics}


@pytest.mark.parametrize(("folder", "count"), VARIANTS)
def test_our_key_and_name_of_every_record_are_secors(folder: str, count: int) -> None:
    for name, data in objects(f"secor/{folder}"):
        prefix, topic, *_, file = name.split("/")
        partition, start = (int(part) for part in Path(file).stem.split("_")[1:])
        for (packed, _), record in zip(read(data, name), read_object(data, name), strict=True):
            assert pack_key(record.offset, record.timestamp_ms, record.key) == packed
            ours = object_name(prefix, topic, partition, hour_of(record.timestamp_ms), start)
            assert Path(ours).with_suffix("") == Path(name).with_suffix("")


def test_after_a_crash_records_are_stored_twice_and_none_is_missing() -> None:
    found = archived("secor/crash-objects/objects/crash_logs")
    sent = messages("secor/crash-objects/messages.jsonl")
    assert len(found) == 1670
    assert len(set(found)) == 1520, "copies differ"
    assert dict(found) == sent


def test_empty_objects_that_secor_stored_are_an_alarm() -> None:
    empty = list(objects("secor/zero-byte-objects/objects/nonative"))
    assert len(empty) == 4
    for name, data in empty:
        with pytest.raises(ArchiveError, match=f"^{name}: the object is empty"):
            list(read_object(data, name))


@pytest.mark.parametrize(("folder", "count"), VARIANTS)
def test_a_cut_object_gives_the_records_before_the_cut(folder: str, count: int) -> None:
    name, data = min(objects(f"secor/{folder}"), key=lambda item: len(item[1]))
    whole = list(read(data, name))
    for cut in range(1, len(data), max(1, len(data) // 400)):
        found, _ = read_until_error(read, data[:cut], name)
        assert found == whole[: len(found)]
        assert len(found) < len(whole)
