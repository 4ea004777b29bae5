"""The proof of an erasure: a search of every store for what identifies a guest.

Each store is read as its readers read it, from its beginning, and decoded: compressed records of Kafka and of the raw
archive, columns of Parquet, blocks of Avro, rows of tables, and files as bytes. A value is found where it stands by
itself: ``g1`` is not in ``g12``.
"""

import io
import json
import mmap
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from psycopg import sql

from batch.backup import PREFIX
from changelog.archive.sequencefile import read
from changelog.archive.store import s3_client
from changelog.erased import pattern
from changelog.topics import TIMEOUT, admin
from runtime.errors import ArchiveError, TerminalError, TransientError
from runtime.settings import Database, Settings

SHOWN = 20
"""Places that are told of a store."""

SILENCE_SECONDS = 30.0

LOCAL = ("checkpoints", "identities", "histories", "derive", "commands", "cdc", "logs", "config", "airflow")
"""Directories of the home that services keep something in. What PostgreSQL, Kafka and the object store have on disk is
searched through them."""

REQUESTS = "erasures"
"""The table that knows whom to look for until he is gone."""


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


def search(settings: Settings, values: Iterable[str]) -> list[Found]:
    """Look for ``values`` in every store. The list of requests itself, in the database and its backups, is left out:
    it is emptied when nothing else is found. Raises TransientError if a store does not answer."""
    wanted = pattern(tuple(sorted(set(values))))
    databases = [settings.ops, settings.catalog]
    if settings.profile == "full":
        databases += [settings.airflow.database]
    return [
        *in_topics(settings, wanted),
        _in_bucket(settings, settings.s3.archive_bucket, wanted),
        _in_bucket(settings, settings.s3.lake_bucket, wanted),
        *(in_database(database, wanted) for database in databases),
        *(_in_directory(settings.home / name, wanted) for name in LOCAL),
    ]


def in_topics(settings: Settings, wanted: re.Pattern[bytes]) -> list[InTopic]:
    """Every topic of the broker's but its own, with what transactions have not committed."""
    there = admin(settings).list_topics(timeout=TIMEOUT).topics
    topics = {name: InTopic(f"kafka: {name}") for name in sorted(there) if not name.startswith("__")}
    consumer = Consumer({
        "bootstrap.servers": settings.kafka.bootstrap, "group.id": "anabranch-search", "enable.auto.commit": False,
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
                parts = [message.key() or b"", message.value() or b"", *(value or b"" for _, value in headers)]
                topics[topic].searched += 1
                if wanted.search(b"\0".join(parts)):
                    topics[topic].note(f"{partition}/{message.offset()}")
                    topics[topic].last[partition] = (message.offset() or 0, message.timestamp()[1])
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    finally:
        consumer.close()
    return list(topics.values())


def _in_bucket(settings: Settings, bucket: str, wanted: re.Pattern[bytes]) -> Found:
    client, found = s3_client(settings.s3), Found(f"bucket: {bucket}")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            try:
                data = client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            except client.exceptions.NoSuchKey:
                continue  # it went meanwhile
            found.searched += 1
            if any(wanted.search(part) for part in (item["Key"].encode(), *decoded(item["Key"], data))):
                found.note(item["Key"])
    return found


def decoded(name: str, data: bytes) -> Iterator[bytes]:
    """What is in an object: its bytes, and what they stand for."""
    yield data
    if data[:4] == b"PAR1":
        yield from _parquet(data)
    elif data[:4] == b"Obj\x01":
        yield from _avro(data)
    elif data[:4] == b"SEQ\x06":
        try:
            for key, value in read(data, name):
                yield key + b"\0" + value
        except ArchiveError:
            return  # damaged: its bytes were looked at
    elif name.startswith(PREFIX) and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for part in archive.namelist():
                if not part.endswith(f"/{REQUESTS}.copy"):
                    yield _copied(archive.read(part))


def _copied(rows: bytes) -> bytes:
    """Rows as COPY writes them, with what bytea columns hold behind them."""
    inside = (bytes.fromhex(text.decode()) for text in re.findall(rb"\\\\x((?:[0-9a-f]{2})+)", rows))
    return b"\0".join([rows, *inside])


def _parquet(data: bytes) -> Iterator[bytes]:
    for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(10_000):
        for column in batch.columns:
            yield from _texts(column)


def _texts(column: pa.Array) -> Iterator[bytes]:
    kind = column.type
    if pa.types.is_struct(kind):
        for child in column.flatten():
            yield from _texts(child)
    elif pa.types.is_map(kind):
        yield from _texts(column.keys)
        yield from _texts(column.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts(column.flatten())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield "\0".join(text for text in column.to_pylist() if text is not None).encode()
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield b"\0".join(value for value in column.to_pylist() if value is not None)


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
        return data[at - size : at]

    about: dict[bytes, bytes] = {}
    while count := number():
        if count < 0:
            count, _ = -count, number()
        for _ in range(count):
            name = taken()
            about[name] = taken()
    at += 16
    codec = about.get(b"avro.codec", b"null")
    if codec not in (b"deflate", b"null"):
        raise TerminalError(f"an Avro file is compressed with {codec.decode()}, which the search cannot read")
    while at < len(data):
        number()
        block = taken()
        at += 16
        yield zlib.decompress(block, -15) if codec == b"deflate" else block


def in_database(database: Database, wanted: re.Pattern[bytes]) -> Found:
    """Every column of every table of a database, whatever its type."""
    found = Found(f"database: {database.name}")
    for schema, table, place, cells in rows_of(database):
        found.searched += 1
        if (schema, table) != ("public", REQUESTS) and any(wanted.search(cell) for cell in cells.values()):
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


def _in_directory(directory: Path, wanted: re.Pattern[bytes]) -> Found:
    found = Found(f"directory: {directory.name}")
    for path in files(directory):
        found.searched += 1
        if wanted.search(path.name.encode()) or _looked_into(path, lambda data: wanted.search(data) is not None):
            found.note(str(path.relative_to(directory)))
    return found


def _looked_into(path: Path, look: Callable[[Any], bool]) -> bool:
    try:
        with path.open("rb") as file:
            if not file.seek(0, io.SEEK_END):
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return look(data)
    except FileNotFoundError:  # it went meanwhile
        return False
