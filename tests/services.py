"""What the tests on real services share: reading the log whole, feeding it, asking, and running commands."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import jsonpatch
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from pydantic import BaseModel, SecretStr
from pyspark.sql import SparkSession

from batch.build import Run, build
from batch.ingest import ingest
from batch.plan import Plan
from batch.run import wait_for_archiver
from changelog.derive import SOURCES
from changelog.derived import DERIVED, GROUP
from changelog.erasures import recorded
from changelog.positions import Vector, covers
from changelog.producer import PARTITIONER, ChangelogProducer, Record
from changelog.sources.simulate import Shop
from changelog.topics import admin, committed_offsets, end_offsets
from changelog.validation import check
from infra import platform
from runtime import ops, trino
from runtime.settings import Settings, entity_of
from serving import publication
from serving.verify import verify
from serving.wait import wait
from speed.alerts import alert_topic
from tests.oracle import LogRecord, Oracle
from views.matching import matching
from views.registry import all_views

ROOT = Path(__file__).resolve().parent.parent

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options of JVMs that are over before it pays to compile well. As much room for code as without them: with the 48 MB
of the first level alone `verify` of many views died of it."""

READ = {
    "order_latest": "SELECT guest_ref, ref, status, country, currency, total FROM {0}",
    "revenue": "SELECT hour, country, currency, orders, revenue FROM {0}",
    "traffic": "SELECT minute, type, channel, events, guests FROM {0}",
    "sessions": "SELECT guest_ref, started_at, ended_at, events FROM {0}",
    "guest_latest": "SELECT ref, first_name, email, country FROM {0}",
    "session_latest": "SELECT guest_ref, ref, channel, started_at, ended_at FROM {0}",
    "guest_spend": "SELECT guest_ref, currency, orders, total_spend FROM {0}",
    "product_sales": "SELECT day, sku, currency, quantity, revenue FROM {0}",
    "pages": "SELECT hour, channel, events, array_join(transform(top_pages, page -> page.value || ':' || "
    "CAST(page.number AS varchar)), ','), first_at, last_at, first_page, last_page FROM {0}",
    "conversion": "SELECT day, type, channel, currency, orders, value FROM {0}",
    "cancellations": "SELECT guest_ref, source_partition, source_offset FROM {0}",
    "cart_abandoned": "SELECT guest_ref, source_partition, source_offset FROM {0}",
    "large_first_order": "SELECT guest_ref, source_partition, source_offset FROM {0}",
}


@dataclass
class Answer:
    """What the merged views say, or what the oracle says they must: a set of rows for each view."""

    views: dict[str, set[tuple[Any, ...]]]

    def difference(self, other: "Answer") -> str:
        """A short text of what differs; empty if nothing does."""
        found = []
        for view, rows in self.views.items():
            mine, theirs = rows - other.views[view], other.views[view] - rows
            if mine or theirs:
                found.append(f"{view}: {len(mine)} only here {sorted(map(str, mine))[:2]}, {len(theirs)} only there "
                             f"{sorted(map(str, theirs))[:2]}")  # fmt: skip
        return "; ".join(found)


def read_log(settings: Settings) -> list[LogRecord]:
    """Every committed record of the changelog that Kafka has; of erased guests only its place and time."""
    with ops.connect(settings) as connection:
        erased = recorded(settings, connection)
    return [
        record._replace(key=None, value=None) if erased.has(record.key) else record
        for record in read_topics(settings, end_offsets(settings))
    ]


def read_topics(settings: Settings, topics: Mapping[str, Iterable[int]]) -> list[LogRecord]:
    """Every committed record of topics (and their partitions), read by a plain consumer."""
    return [
        LogRecord(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            _bytes(message.key()),
            _bytes(message.value()),
            message.timestamp()[1] * 1000,
        )
        for message in _messages(settings, topics)
    ]


def _messages(settings: Settings, topics: Mapping[str, Iterable[int]]) -> Iterator[Message]:
    consumer = Consumer({
        **settings.kafka.client(), "group.id": "tests-reader", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "earliest",
        "log_level": 3,
    })  # fmt: skip
    places = {(topic, partition) for topic, parts in topics.items() for partition in parts}
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in places])
    while places:
        for message in consumer.consume(5000, 1.0):
            if message.error():  # the end of a partition
                places.discard((message.topic() or "", message.partition() or 0))
            else:
                yield message
    consumer.close()


def alerts_sent(settings: Settings) -> list[tuple[str, str, int, int]]:
    """(pattern, guest, partition and offset of the source) of every committed record of the alerts' topics."""
    topics = [alert_topic(view) for view in matching(all_views()) if view.alert]
    log = read_topics(settings, {topic: range(settings.kafka.partitions) for topic in topics})
    alerts = [json.loads(record.value or b"") for record in log]
    return [
        (alert["pattern"], alert["guestRef"], alert["source"]["partition"], alert["source"]["offset"])
        for alert in alerts
    ]


class DerivedRecord(NamedTuple):
    """A record of a derived topic; ``source``: topic, partition and offset of the record that it is from."""

    partition: int
    offset: int
    key: str
    value: Any
    source: tuple[str, int, int]
    provenance: tuple[str, str]


def read_derived(settings: Settings, topic: str) -> list[DerivedRecord]:
    """Every committed record of a derived topic, in the order of offsets; numbers with a fraction are Decimals."""
    found = []
    for message in _messages(settings, {topic: range(settings.kafka.partitions)}):
        headers = {name: value.decode() for name, value in cast("list[tuple[str, bytes]]", message.headers())}
        value = _bytes(message.value())
        found.append(
            DerivedRecord(
                message.partition() or 0,
                message.offset() or 0,
                (_bytes(message.key()) or b"").decode(),
                json.loads(value, parse_float=Decimal) if value else None,
                (headers["source-topic"], int(headers["source-partition"]), int(headers["source-offset"])),
                (headers["service-name"], headers["identifier"]),
            )
        )
    return found


def await_derived(settings: Settings) -> None:
    """Wait until the derived topics hold what follows from everything acknowledged so far."""
    ends = end_offsets(settings, SOURCES)
    until(lambda: covers(committed_offsets(settings, GROUP, SOURCES), ends), 60, "derive has caught up")


def assert_derived(settings: Settings, log: list[LogRecord] | None = None) -> None:
    """Wait until all is derived, and compare the topics, as nothing has compacted them, with plain Python: every change
    once and in order, patches complete, newest versions. ``log``: what is in Kafka, or the end of the log of entities
    that are not in what lies before it."""
    await_derived(settings)
    log = read_log(settings) if log is None else log
    oracle, begin = fold(log), {(r.topic, r.partition): r.offset for r in sorted(log, key=lambda r: -r.offset)}

    def derived(topic: str) -> list[DerivedRecord]:
        found = read_derived(settings, topic)
        return sorted(one for one in found if one.source[2] >= begin.get(one.source[:2], sys.maxsize))

    for entity in DERIVED:
        changes = sorted(oracle.changes[entity], key=lambda change: (change.at.partition, change.at.offset))
        versions = derived(f"latest.{entity}")
        assert [one.source for one in versions] == [(c.at.topic, c.at.partition, c.at.offset) for c in changes]
        said = [(c.current or c.original or {})["ref"] for c in changes]
        assert [(one.partition, one.key, one.value) for one in versions] == [
            (change.at.partition, ref, change.current) for change, ref in zip(changes, said, strict=True)
        ]
        patches = derived(f"patch.{entity}")
        differing = [change for change in changes if change.current != change.original]
        assert [one.source for one in patches] == [(c.at.topic, c.at.partition, c.at.offset) for c in differing]
        assert [one.key for one in patches] == [change.guest for change in differing]
        documents: dict[tuple[int, str], Any] = {}
        for one in patches:
            name = one.partition, one.value["ref"]
            documents[name] = jsonpatch.apply_patch(documents.get(name), one.value["patch"])
        newest = {(one.partition, one.key): one.value for one in versions}
        assert documents == newest
        there = {(one["ref"] if entity == "guest" else one["guestRef"], one["ref"]): one
                 for one in newest.values() if one}  # fmt: skip
        assert there == oracle.entities[entity]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def fold(log: list[LogRecord]) -> Oracle:
    """What plain Python makes of a log."""
    bad = {
        (record.topic, record.partition, record.offset)
        for record in log
        if record.value and check(entity_of(record.topic), record.key, record.value).reason is not None
    }
    return Oracle(log, bad)


def expected(settings: Settings) -> Answer:
    """What plain Python makes of the whole log as it is in Kafka now."""
    oracle = fold(read_log(settings))
    return Answer({view: getattr(oracle, view)() for view in READ})


def served(settings: Settings) -> Answer:
    """What the merged views say now."""

    def read(view: str) -> set[tuple[Any, ...]]:
        return {tuple(row) for row in trino.execute(trino.connect(settings), READ[view].format(f"serving.{view}"))[1]}

    with ThreadPoolExecutor(trino.AT_ONCE) as pool:
        return Answer(dict(zip(READ, pool.map(read, READ), strict=True)))


def assert_exact(settings: Settings) -> None:
    """Wait until everything acknowledged is covered, and compare every view with plain Python."""
    wait(settings, timeout_seconds=240)
    truth = expected(settings)
    assert served(settings).difference(truth) == ""


def let_go(settings: Settings, positions: Vector) -> None:
    """Let Kafka's retention pass up to ``positions``."""
    client = admin(settings)  # has to live as long as its futures
    places = [TopicPartition(topic, p, offset) for topic, parts in positions.items() for p, offset in parts.items()]
    for future in client.delete_records(places).values():
        future.result(30)


def age_generations(settings: Settings) -> None:
    """Let the generations so far be of yesterday: each test is a fault by itself, and not one that comes again."""
    with ops.connect(settings) as connection:
        connection.execute("UPDATE generations SET created_at = created_at - interval '1 day'")


def secrets_of(settings: BaseModel) -> set[str]:
    """Every secret of the settings, in clear."""
    found = set()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        for one in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(one, SecretStr):
                found.add(one.get_secret_value())
            elif isinstance(one, BaseModel):
                found |= secrets_of(one)
    return found - {""}


def feed(settings: Settings, records: Iterable[Record]) -> int:
    """Send records and wait for their acknowledgement."""
    with ChangelogProducer(settings) as producer:
        for record in records:
            producer.send(record)
    return producer.acknowledged


@contextmanager
def busy(settings: Settings, seed: int) -> Iterator[None]:
    """Others go on all the while: records of ``seed`` and of those after it, as long as it takes."""
    over, failed = threading.Event(), []

    def go_on() -> None:
        try:
            for one in count(seed):
                if over.is_set():
                    return
                feed(settings, shop(one, 60))
                over.wait(0.5)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failed == []


def transactional(settings: Settings, name: str) -> Producer:
    """A producer of transactions, ready to begin one; whoever had its name before is fenced."""
    producer = Producer({
        **settings.kafka.client(), "transactional.id": name, "partitioner": PARTITIONER,
        "transaction.timeout.ms": 300_000, "log_level": 3,
    })  # fmt: skip
    producer.init_transactions(30)
    return producer


def send_in_one(producer: Producer, records: Iterable[Record], commit: bool = True) -> None:
    """One transaction, committed or aborted; aborted, its records are in the log all the same."""
    producer.begin_transaction()
    for record in records:
        producer.produce(record.topic, key=record.key, value=record.value)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def in_a_transaction(settings: Settings, records: list[Record], commit: bool) -> None:
    """Send records, and commit or abort: either leaves offsets without records."""
    send_in_one(transactional(settings, f"tests-{commit}"), records, commit)


def shop(seed: int, records: int) -> list[Record]:
    """A shop with everything that can happen: duplicates, late events, broken records."""
    return list(Shop(seed=seed, duplicates=0.05, late=0.05, broken=0.02, rate=50).records(records))


def run(*arguments: str, status: int = 0, error: bool = False, **environment: str) -> str:
    """Run ``anabranch`` as a user does. Returns its standard output, or its standard error; fails the test on another
    exit status."""
    done = start(*arguments, **environment)
    out, err = done.communicate(timeout=400)
    assert done.returncode == status, f"anabranch {' '.join(arguments)}: exit status {done.returncode}\n{out}\n{err}"
    return err if error else out


def start(*arguments: str, module: str = "infra.cli", **environment: str) -> "subprocess.Popen[str]":
    """Start a command in a process group of its own, so that a kill takes what it started along."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def batch(spark: SparkSession, settings: Settings, plan: Plan | None = None, serve: bool = True) -> Run:
    """What ``anabranch batch`` does, in a session that is warm: the tests that are about something else save its start.

    Everything acknowledged is archived, ingested, built and, unless ``serve`` is false, published.
    """
    plan = plan or Plan()
    assert wait_for_archiver(settings, end_offsets(settings), 90)
    report = ingest(spark, settings)
    assert not report.lost
    assert not report.alarms
    run = build(spark, settings, plan)
    if serve:
        publication.publish(settings, run.run_id, back=plan.full)
    return run


def assert_verified(spark: SparkSession, settings: Settings) -> None:
    """What ``anabranch verify`` does finds no difference."""
    assert verify(spark, settings).differences == []


def query(settings: Settings, sql: str) -> list[Any]:
    """The rows of a query, each as a list."""
    return [list(row) for row in trino.execute(trino.connect(settings), sql)[1]]


def status() -> dict[str, dict[str, Any]]:
    """What ``anabranch status`` shows, by name of service."""
    return {service["name"]: service for service in platform.status()["services"]}


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Await a condition; fails the test after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)
