"""Reading every place where records are, by plain clients: Kafka, raw objects, columnar archive, speed layer, views."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from trino.types import NamedRowTuple

from changelog.archive.secor import partition_of, read_object
from changelog.topics import committed_offsets, start_offsets
from changelog.validation import check
from runtime import trino
from runtime.errors import ArchiveError
from runtime.settings import ENTITIES, Settings, entity_of
from tests.faults import checker
from tests.faults.checker import Archived, Epoch, Finding, Partition, Stored
from tests.faults.journal import BAD, CHANGE, TOMBSTONE, Journal, Place, read_journal
from tests.services import READ, read_log

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Tolerated = frozenset[tuple[str, str]]
"""(where, what) that is no finding: what a fault did on purpose and the promise does not speak of."""


@dataclass
class Checked:
    """What a check found. ``records``: of the log; ``known``: of those, in the journal; ``kinds``: how many of each."""

    findings: list[Finding]
    records: int
    known: int
    kinds: dict[str, int] = field(default_factory=dict)
    tolerated: list[Finding] = field(default_factory=list)

    def count(self, what: str) -> int:
        return Counter(one.what for one in self.findings)[what]

    def __str__(self) -> str:
        more = len(self.findings) - 10
        return "\n".join([*map(str, self.findings[:10]), *([f"and {more} more"] if more > 0 else [])])


class Objects:
    """The raw objects under a prefix. What was read is remembered by key and etag: most objects never change."""

    def __init__(self, settings: Settings, prefix: str | None = None) -> None:
        store = settings.s3
        self.bucket, self.prefix = store.archive_bucket, prefix or store.archive_prefix
        self.client = boto3.client(
            "s3", endpoint_url=store.endpoint, region_name=store.region, aws_access_key_id=store.access_key,
            aws_secret_access_key=store.secret_key.get_secret_value(),
            config=Config(
                s3={"addressing_style": "path"}, max_pool_connections=16, response_checksum_validation="when_required"
            ),
        )  # fmt: skip
        self._read: dict[tuple[str, str], list[Stored]] = {}

    def listed(self, topic: str) -> dict[str, str]:
        """Objects of a topic that hold records: key → etag."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.prefix}/{topic}/"
        )
        there = {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", ())}
        return {key: etag for key, etag in there.items() if partition_of("/" + key) is not None}

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def records(self, topics: Sequence[str]) -> list[Stored]:
        """Every record of every object; of a damaged object those before the damage."""

        def read(topic: str, key: str, etag: str) -> list[Stored]:
            if (key, etag) in self._read:
                return self._read[key, etag]
            try:
                data = self.get(key)
            except ClientError:
                return []  # missing then; not remembered, for whole again it has the same etag
            return self._read.setdefault((key, etag), list(stored(topic, key, data)))

        there = [(topic, key, etag) for topic in topics for key, etag in self.listed(topic).items()]
        with ThreadPoolExecutor(16) as pool:
            return [record for records in pool.map(lambda one: read(*one), there) for record in records]


def stored(topic: str, key: str, data: bytes) -> list[Stored]:
    """The records of an object, as far as it can be read."""
    found: list[Stored] = []
    try:
        for record in read_object(data, key):
            place = (topic, partition_of("/" + key) or 0, record.offset)
            found.append(Stored(place, record.key, record.value, record.timestamp_ms * 1000, key))
    except ArchiveError:
        pass  # its records are missing then, which is what is looked for
    return found


def rows_of_archive(settings: Settings, entity: str, version: str = "") -> list[Archived]:
    """The rows of ``archive.<entity>``; ``version``: a branch or a snapshot, quoted as Trino wants it."""
    at = f" FOR VERSION AS OF {version}" if version else ""
    _, rows = trino.execute(
        trino.connect(settings),
        "SELECT kafka_partition, kafka_offset, last_offset, kind, append_time, key, service_name, identifier, value, "
        f'"current", original FROM lake.archive."{entity}"{at}',
    )
    return [_archived(f"changelog.{entity}", row) for row in rows]


def _archived(topic: str, row: Sequence[Any]) -> Archived:
    partition, offset, last, kind, time, key, service, identifier, value, current, original = row
    now, before = plain(current), plain(original)
    place = (topic, partition, offset)
    return Archived(place, last, kind, microseconds(time), key, service, identifier, value, now, before)


def plain(value: Any) -> Any:
    """A row of Trino's as a dict by the names of its fields, at any depth."""
    if isinstance(value, NamedRowTuple):
        return {name: plain(one) for name, one in zip(value.__annotations__["names"], value, strict=True)}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def microseconds(time: datetime | None) -> int | None:
    return None if time is None else (time - EPOCH) // timedelta(microseconds=1)


def archive_tables(settings: Settings) -> dict[str, int]:
    """The newest snapshot of every archive table there is."""
    sql = "SELECT table_name FROM lake.information_schema.tables WHERE table_schema = 'archive'"
    _, there = trino.execute(trino.connect(settings), sql)
    found = {}
    for (entity,) in there:
        if entity in ENTITIES:
            sql = f"SELECT snapshot_id FROM lake.archive.\"{entity}$refs\" WHERE name = 'main'"
            for (snapshot,) in trino.execute(trino.connect(settings), sql)[1]:
                found[entity] = snapshot
    return found


def epochs(settings: Settings) -> list[Epoch]:
    """The speed layer's journal, of all generations."""
    _, rows = trino.execute(
        trino.connect(settings),
        "SELECT generation, epoch, topic, kafka_partition, start_offset, end_offset, changes, duplicates, bad, "
        "tombstones FROM lake.ops.epochs",
    )
    kinds = (CHANGE, checker.DUPLICATE, BAD, TOMBSTONE)
    return [
        Epoch(row[0], row[1], (row[2], row[3]), row[4], row[5], dict(zip(kinds, row[6:], strict=True))) for row in rows
    ]


def rows_of_view(settings: Settings, view: str, schema: str = "serving") -> list[tuple[Any, ...]]:
    """The rows that people read of a view, as the tests read them."""
    _, rows = trino.execute(trino.connect(settings), READ[view].format(f"lake.{schema}.{view}"))
    return [tuple(row) for row in rows]


class Look(NamedTuple):
    """What :meth:`Checker.look` read."""

    journal: Journal
    truth: checker.Truth
    stored: list[Stored]
    findings: list[Finding]


class Checker:
    """Checks every place of a platform against a journal and Kafka. One for a platform: it remembers what it read."""

    def __init__(self, settings: Settings, journal: Path) -> None:
        self.settings, self.journal = settings, journal
        self.objects = Objects(settings)
        self._archive: dict[tuple[str, int], list[Archived]] = {}
        self._forgiven: set[tuple[str, str, str]] = set()

    def look(self) -> Look:
        """Kafka, journal and raw objects, and what of Kafka is wrong. The log has to stand still."""
        settings, journal = self.settings, read_journal(self.journal)
        begin = by_partition(start_offsets(settings))
        log = [record for record in read_log(settings) if record.offset >= begin[record.topic, record.partition]]
        raw = self.objects.records(settings.topics)
        foreign_bad = {
            checker.place_of(record)
            for record in log
            if record.value
            and not journal.owns(record.key)
            and check(entity_of(record.topic), record.key, record.value).reason is not None
        } | {
            one.place
            for one in raw
            if one.value
            and not journal.owns(one.key)
            and one.place[2] < begin[one.place[:2]]
            and check(entity_of(one.place[0]), one.key, one.value).reason is not None
        }
        truth = checker.truth_of(journal, log, begin, raw, foreign_bad)
        return Look(
            journal, truth, raw, checker.check_kafka(journal, log, begin) + checker.lost_for_good(journal, truth)
        )

    def check(self, tolerated: Tolerated = frozenset()) -> Checked:
        """Look everywhere. Everything acknowledged has to be covered by the views; the log has to stand still.

        What is ``tolerated`` once as doubled stays so, and is not told again.
        """
        journal, truth, raw, findings = self.look()
        committed = by_partition(committed_offsets(self.settings, self.settings.archiver.group, self.settings.topics))
        findings += checker.check_raw(truth, raw, committed)
        findings += checker.check_archive(truth, self.archive())
        findings += checker.check_speed(truth, epochs(self.settings))
        findings += checker.check_dead_letters(truth, self.dead_letters())
        oracle = truth.fold()
        about = checker.newest_records(truth, oracle)
        with ThreadPoolExecutor(trino.AT_ONCE) as pool:
            served = dict(zip(READ, pool.map(lambda view: rows_of_view(self.settings, view), READ), strict=True))
        for view in READ:
            must = getattr(oracle, view)()
            findings += checker.check_view(view, served[view], must, checker.KEYS[view], about.get(view))
        findings = [one for one in findings if one[:3] not in self._forgiven]
        meant = [one for one in findings if one[:2] in tolerated]
        self._forgiven |= {one[:3] for one in meant if one.what == checker.DOUBLED}
        left = [one for one in findings if one[:2] not in tolerated]
        return Checked(left, len(truth.log), len(journal.placed), dict(Counter(truth.kinds.values())), meant)

    def archive(self) -> list[Archived]:
        """The rows of all archive tables."""
        now = archive_tables(self.settings)
        self._archive = {
            (entity, snapshot): self._archive.get((entity, snapshot)) or rows_of_archive(self.settings, entity)
            for entity, snapshot in now.items()
        }
        return [row for rows in self._archive.values() for row in rows]

    def dead_letters(self) -> list[tuple[Place, bytes | None]]:
        """Place and value of every bad record that people are shown."""
        _, rows = trino.execute(
            trino.connect(self.settings), "SELECT topic, kafka_partition, kafka_offset, value FROM lake.ops.bad_records"
        )
        return [((row[0], row[1], row[2]), row[3]) for row in rows]


def by_partition(vector: dict[str, dict[int, int]]) -> dict[Partition, int]:
    return {(topic, partition): offset for topic, parts in vector.items() for partition, offset in parts.items()}
