"""The proof of an erasure: a search of every store for what identifies a guest.

Each store is read as its readers read it, from its beginning, and decoded: compressed records of Kafka and of the raw
archive, columns of Parquet, blocks of Avro, rows of tables, and files as bytes; what cannot be decoded to its end is
told as if something were in it. What it means that a value is there, ``changelog.erased`` says.
"""

import io
import json
import mmap
import re
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import BotoCoreError, ClientError
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from psycopg import sql

from batch.backup import PREFIX
from changelog.archive.secor import partition_of, read_object
from changelog.archive.store import s3_client
from changelog.derived import latest_topic
from changelog.erased import forms, guests_in, is_weak, pattern
from changelog.sources.cdc import events, stream
from changelog.sources.cdc.mapping import KEYS, refs_of
from changelog.topics import TIMEOUT, admin
from runtime.errors import ContractError, TerminalError, TransientError
from runtime.settings import Database, Settings

SHOWN = 20
"""Places that are told of a store."""

SILENCE_SECONDS = 30.0

LOCAL = ("checkpoints", "identities", "histories", "derive", "commands", "cdc", "logs", "config", "airflow")
"""Directories of the home that services keep something in. What PostgreSQL, Kafka and the object store have on disk is
searched through them."""

REQUESTS = "erasures"
"""The table that knows whom to look for until he is gone."""

GUEST_COLUMNS = ("guest_ref", "key")
"""Columns that hold a guest's ref, in whatever table of ours."""

RAW = "value"
"""Column of the lake that holds records of the log as they came."""

KEYED = ("changelog.", "patch.", "alert.", "command.")
"""Topics whose keys are refs of guests."""

UNREADABLE = (TerminalError, pa.ArrowException, OSError, zlib.error, zipfile.BadZipFile, IndexError, ValueError)

PIECE = 16 * 1024 * 1024
"""Bytes of a file that are looked through at a time."""


class Wanted:
    """What is looked for: a guest's ``ref``, and ``others`` by which he is known, addresses and refs of what was his.
    Each is found wherever it stands by itself, but for a ref that is ``weak``: that is looked for where a guest's ref
    is expected. In records of the log, which are found by their keys, only what names him (``who``): the ref of an
    order in a broken record of somebody else says nothing of anybody any more."""

    def __init__(self, ref: str, others: Iterable[str] = ()) -> None:
        strong = [value for value in (ref, *others) if not is_weak(value)]
        self.values = frozenset(value.encode() for value in (ref, *others))
        self.weak = ref.encode() if is_weak(ref) else None
        self.all = pattern([value.encode() for value in strong])
        self.who = pattern([value.encode() for value in strong if value == ref or "@" in value])

    def is_in(self, data: bytes) -> bool:
        """Whether something is anywhere in ``data``, in whatever spelling JSON has for it."""
        return any(self.all.search(form) for form in forms(data))

    def is_said(self, entity: str, value: bytes) -> bool:
        """Whether something is in ``value``, which is of an entity, as JSON has it or as text."""
        return self.is_in(value) or (self.weak is not None and self.weak in guests_in(entity, value))

    def is_named(self, entity: str, value: bytes) -> bool:
        """Whether ``value``, of a record of the log, names him. As a bad record is judged."""
        return any(self.who.search(form) for form in forms(value)) or (
            self.weak is not None and self.weak in guests_in(entity, value)
        )

    def is_in_column(self, name: str, entity: str, cells: Sequence[bytes]) -> bool:
        """Whether something is in a column of a table."""
        if self.is_in(b"\0".join(cells)):
            return True
        return self.weak is not None and (
            (name in GUEST_COLUMNS and self.weak in cells)
            or any(self.weak in guests_in(entity, cell) for cell in cells)
        )


@dataclass
class Found:
    """One store: how much of it was searched, how often something was found, and the first places."""

    store: str
    searched: int = 0
    number: int = 0
    places: list[str] = field(default_factory=list)

    def note(self, place: str) -> None:
        """Something is there."""
        self.number += 1
        if len(self.places) < SHOWN:
            self.places.append(place)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class InTopic(Found):
    """A topic: the ``last`` offset of each partition that holds something, and when that was appended (ms)."""

    last: dict[int, tuple[int, int]] = field(default_factory=dict)


def search(settings: Settings, wanted: Wanted) -> list[Found]:
    """Look for somebody in every store. The list of requests itself, in the database and its backups, is left out:
    it is emptied when nothing else is found. Raises TransientError if a store does not answer."""
    return [
        *in_topics(settings, wanted),
        _in_bucket(settings, settings.s3.archive_bucket, wanted),
        _in_bucket(settings, settings.s3.lake_bucket, wanted),
        *(in_database(database, wanted, entity) for database, entity in databases(settings)),
        *(_in_directory(settings.home / name, wanted) for name in LOCAL),
    ]


def databases(settings: Settings) -> list[tuple[Database, str]]:
    """Every database of ours, and of which entity its JSON is: a form of Airflow's calls the guest ``ref``."""
    airflow = [(settings.airflow.database, "guest")] if settings.profile == "full" else []
    return [(settings.ops, ""), (settings.catalog, ""), *airflow]


def in_record(wanted: Wanted, prefix: str, topic: str, key: bytes, value: bytes) -> bool:
    """Whether something is in a record of Kafka's. ``prefix``: of the refs of the shop's rows."""
    of_guest = topic.startswith(KEYED) or topic == latest_topic("guest")
    said = wanted.is_named if topic.startswith("changelog.") else wanted.is_said
    if (of_guest and key == wanted.weak) or wanted.is_in(key) or said(topic.rpartition(".")[2], value):
        return True
    return topic == stream.TOPIC and not wanted.values.isdisjoint(_captured(prefix, value))


def _captured(prefix: str, value: bytes) -> set[bytes]:
    """The refs of which a captured record's rows are: the stream itself has numbers only."""
    try:
        event = events.parse(stream.TOPIC, 0, 0, value)
    except ContractError:
        return set()  # its bytes were looked at
    if isinstance(event, events.Changed):
        table, rows = event.table, [event.before, event.after]
    elif isinstance(event, events.Read):
        table, rows = event.table, [event.row]
    else:
        return set()
    return {ref.encode() for row in rows if row and table in KEYS for ref in refs_of(prefix, table, row)}


def in_topics(settings: Settings, wanted: Wanted) -> list[InTopic]:
    """Every topic of the broker's but its own, with what transactions have not committed."""
    there = admin(settings).list_topics(timeout=TIMEOUT).topics
    topics = {name: InTopic(f"kafka: {name}") for name in sorted(there) if not name.startswith("__")}
    consumer = Consumer({
        **settings.kafka.client(), "group.id": "anabranch-search", "enable.auto.commit": False,
        "isolation.level": "read_uncommitted", "enable.partition.eof": True, "auto.offset.reset": "earliest",
        "fetch.message.max.bytes": 64 * 1024 * 1024, "log_level": 3,
    })  # fmt: skip
    try:
        places = {(name, partition) for name in topics for partition in there[name].partitions}
        starts = [
            TopicPartition(name, p, consumer.get_watermark_offsets(TopicPartition(name, p), timeout=TIMEOUT)[0])
            for name, p in places
        ]
        consumer.assign(starts)
        deadline = time.monotonic() + SILENCE_SECONDS
        while places:
            messages = consumer.consume(5_000, 0.5)
            if messages:
                deadline = time.monotonic() + SILENCE_SECONDS
            elif time.monotonic() > deadline:
                raise TransientError(f"Kafka at {settings.kafka.bootstrap} fell silent before the end of {places}")
            for message in messages:
                error, topic, partition = message.error(), message.topic() or "", message.partition() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise TransientError(f"Kafka: {error}")
                if error is not None:
                    places.discard((topic, partition))
                    continue
                headers: Any = message.headers() or []
                key, value = message.key() or b"", message.value() or b""
                topics[topic].searched += 1
                if in_record(wanted, settings.cdc.refs, topic, key, value) or any(
                    wanted.is_in(content or b"") for _, content in headers
                ):
                    topics[topic].note(f"{partition}/{message.offset()}")
                    topics[topic].last[partition] = (message.offset() or 0, message.timestamp()[1])
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    finally:
        consumer.close()
    return list(topics.values())


def _in_bucket(settings: Settings, bucket: str, wanted: Wanted) -> Found:
    client, found = s3_client(settings.s3), Found(f"bucket: {bucket}")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            try:
                data = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            except client.exceptions.NoSuchKey:
                continue  # it went meanwhile
            except (BotoCoreError, ClientError) as error:
                client.list_objects_v2(Bucket=bucket, MaxKeys=1)  # a store that is away is another matter
                found.note(f"{item['Key']} (cannot be read: {error})")
                continue
            found.searched += 1
            if place := place_in(wanted, item["Key"], data):
                found.note(place)
    return found


def place_in(wanted: Wanted, name: str, data: bytes) -> str | None:
    """An object as a place where something is, in its name, its bytes, or what they stand for. One that cannot be read
    to its end is such a place too."""
    if not data:
        return name if wanted.is_in(name.encode()) else None
    if wanted.is_in(name.encode()) or wanted.is_in(data):
        return name
    try:
        return name if any(_looked_into(wanted, name, data)) else None
    except UNREADABLE as error:
        return f"{name} (cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__})"


def _looked_into(wanted: Wanted, name: str, data: bytes) -> Iterator[bool]:
    """Of each part of what an object's bytes stand for, whether something is there."""
    if data[:4] == b"PAR1" or name.endswith(".parquet"):
        yield from _parquet(wanted, "guest" if "/archive/guest/" in name else "", data)
    elif data[:4] == b"Obj\x01" or name.endswith(".avro"):
        yield from map(wanted.is_in, _avro(data))
    elif partition_of(f"/{name}") is not None:
        entity = name.partition("/dt=")[0].rpartition(".")[2]
        for record in read_object(data, name):
            key = record.key or b""
            yield key == wanted.weak or wanted.is_in(key) or wanted.is_named(entity, record.value)
    elif name.startswith(PREFIX):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for part in archive.namelist():
                if not part.endswith(f"/{REQUESTS}.copy"):
                    yield wanted.is_said("", _copied(archive.read(part)))


def _copied(rows: bytes) -> bytes:
    """Rows as COPY writes them, with what bytea columns hold behind them."""
    inside = (bytes.fromhex(text.decode()) for text in re.findall(rb"\\\\x((?:[0-9a-f]{2})+)", rows))
    return b"\0".join([rows, *inside])


def _parquet(wanted: Wanted, entity: str, data: bytes) -> Iterator[bool]:
    for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(10_000):
        for outer, column in zip(batch.schema.names, batch.columns, strict=True):
            for name, cells in _texts(outer, column):
                if name == RAW:
                    yield any(wanted.is_named(entity, cell) for cell in cells)
                else:
                    yield wanted.is_in_column(name, entity, cells)


def _texts(name: str, column: pa.Array) -> Iterator[tuple[str, list[bytes]]]:
    """The columns of text and bytes within one: the name of the innermost field, and its cells."""
    kind = column.type
    if pa.types.is_struct(kind):
        for at, child in enumerate(column.flatten()):
            yield from _texts(kind.field(at).name, child)
    elif pa.types.is_map(kind):
        yield from _texts(name, column.keys)
        yield from _texts(name, column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts(name, column.flatten())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield name, [text.encode() for text in column.to_pylist() if text is not None]
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield name, [value for value in column.to_pylist() if value is not None]


def _avro(data: bytes) -> Iterator[bytes]:
    """The blocks of an Avro container file, inflated (https://avro.apache.org/docs/1.12.0/specification): manifests."""
    at = 4

    def number() -> int:
        nonlocal at
        shift = total = 0
        while True:
            byte = data[at]
            at += 1
            total |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return (total >> 1) ^ -(total & 1)

    def taken() -> bytes:
        nonlocal at
        size = number()
        at += size
        if at > len(data):
            raise ValueError("cut off")
        return data[at - size : at]

    about: dict[bytes, bytes] = {}
    while count := number():
        if count < 0:
            count, _ = -count, number()
        for _ in range(count):
            name = taken()
            about[name] = taken()
    marker = data[at : at + 16]
    at += 16
    codec = about.get(b"avro.codec", b"null")
    if codec not in (b"deflate", b"null"):
        raise TerminalError(f"an Avro file is compressed with {codec.decode()}, which the search cannot read")
    while at < len(data):
        number()
        block = taken()
        at += 16
        if data[at - 16 : at] != marker:
            raise ValueError("cut off")
        yield zlib.decompress(block, -15) if codec == b"deflate" else block


def in_database(database: Database, wanted: Wanted, entity: str = "") -> Found:
    """Every column of every table of a database, whatever its type. ``entity``: of which its JSON is."""
    found = Found(f"database: {database.name}")
    for schema, table, place, cells in rows_of(database):
        found.searched += 1
        if (schema, table) != ("public", REQUESTS) and any(
            wanted.is_in_column(name, entity, [cell]) for name, cell in cells.items()
        ):
            found.note(f"{schema}.{table} {place}")
    return found


def rows_of(database: Database) -> Iterator[tuple[str, str, str, dict[str, bytes]]]:
    """(schema, table, ctid, column → content) of every row of a database. Raises TransientError if it is not there."""
    try:
        with psycopg.connect(database.dsn) as connection:
            for schema, table in connection.execute(_TABLES).fetchall():
                name = sql.Identifier(schema, table)
                with connection.cursor(name="rows") as cursor:
                    cursor.execute(sql.SQL("SELECT ctid::text, t.* FROM {} t").format(name))
                    columns = [column.name for column in cursor.description or ()][1:]
                    for place, *row in cursor:
                        yield schema, table, place, {c: _bytes(v) for c, v in zip(columns, row, strict=True)}
    except psycopg.OperationalError as error:
        raise TransientError(f"database {database.name} does not answer: {error}") from error


_TABLES = (
    "SELECT schemaname::text, tablename::text FROM pg_tables "
    "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"
)


def _bytes(cell: Any) -> bytes:
    if isinstance(cell, bytes | memoryview):
        return bytes(cell)
    return (json.dumps(cell, ensure_ascii=False) if isinstance(cell, dict | list) else str(cell)).encode()


def files(directory: Path) -> Iterator[Path]:
    """The files below a directory; none if it is not there."""
    return (path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink())


def _in_directory(directory: Path, wanted: Wanted) -> Found:
    found = Found(f"directory: {directory.name}")
    for path in files(directory):
        found.searched += 1
        if wanted.is_in(path.name.encode()) or any(map(wanted.is_in, pieces(path))):
            found.note(str(path.relative_to(directory)))
    return found


def pieces(path: Path) -> Iterator[bytes]:
    """What is in a file, cut where nothing of ours is cut: at zeros and ends of lines."""
    try:
        with path.open("rb") as file:
            if not file.seek(0, io.SEEK_END):
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                at = 0
                while at < len(data):
                    cut = _CUT.search(data, at + PIECE)
                    end = cut.end() if cut else len(data)
                    yield data[at:end]
                    at = end
    except FileNotFoundError:  # it went meanwhile
        return


_CUT = re.compile(rb"[\0\n]")
