"""The derived topics on real services: what they hold, who reads them, and what compaction does to readers."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from changelog.derive import SOURCES
from changelog.derived import DERIVED, GROUP
from changelog.envelope import encode, envelope
from changelog.exact import parse
from changelog.latest import Batch, Latest
from changelog.producer import ChangelogProducer, Record
from changelog.reader import Reader
from changelog.said import Said
from changelog.topics import admin, committed_offsets, end_offsets
from runtime.errors import TerminalError
from runtime.settings import Settings
from tests.oracle import Oracle
from tests.services import (
    assert_derived,
    await_derived,
    feed,
    fold,
    in_a_transaction,
    read_derived,
    read_log,
    run,
    served,
    shop,
    start,
    status,
    until,
)

pytestmark = pytest.mark.integration

TIME = "2026-02-01T12:00:00.000Z"
GUEST = "g-compacted"
COMPACTED = "latest.session"


def session(ref: str, original: dict[str, Any] | None = None, **fields: Any) -> Record:
    """A create or an update of a session of one guest; ``deleted=True`` deletes it."""
    current = {"ref": ref, "guestRef": GUEST, "channel": "WEB", "startedAt": TIME, "modifiedAt": TIME, **fields}
    made = None if fields.get("deleted") else current
    identifier = f"{ref}-{json.dumps(fields, sort_keys=True)}"
    return Record("changelog.session", GUEST.encode(), encode(envelope("test", identifier, made, original)))


def state(latest: Latest) -> dict[tuple[int, str], dict[str, Any]]:
    """What a reader knows when it has caught up."""
    return folded(latest, {})


def folded(latest: Latest, known: dict[tuple[int, str], dict[str, Any]]) -> dict[tuple[int, str], dict[str, Any]]:
    """The same of one that knows something already."""
    while True:
        batch = latest.read(5)
        take(batch, known)
        if batch.caught_up:
            return known


def take(batch: Batch, known: dict[tuple[int, str], dict[str, Any]]) -> None:
    if batch.anew:
        known.clear()
    for update in batch.updates:
        known.pop((update.partition, update.ref), None)
        if update.version is not None:
            known[update.partition, update.ref] = update.version.current


def by_guest(entity: str, known: dict[tuple[int, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["ref"] if entity == "guest" else one["guestRef"], one["ref"]): one for one in known.values()}


def test_every_change_is_derived_once_and_in_order_and_nothing_else_is(platform: Settings) -> None:
    """Of a log with deletes, duplicates, bad records and tombstones."""
    feed(platform, shop(301, 1500))
    feed(platform, shop(301, 300))
    assert_derived(platform)
    assert status()["derive"]["state"] == "running"
    assert status()["derive"]["detail"]["patches"] > 0


def test_newest_versions_are_what_the_merged_views_say(platform: Settings) -> None:
    run("wait")
    await_derived(platform)
    views = served(platform).views
    oracle = Oracle([], set())
    for entity in DERIVED:
        with Latest(platform, entity) as latest:
            oracle.entities[entity] = by_guest(entity, state(latest))
        printed = [parse(line.encode()) for line in run("latest", entity, "--json").splitlines()]
        known = {(line["partition"], line["ref"]): line["current"] for line in printed}
        assert by_guest(entity, known) == oracle.entities[entity]
        assert len(printed) == len(known) > 50
    assert oracle.order_latest() == views["order_latest"]
    assert oracle.guest_latest() == views["guest_latest"]
    assert oracle.session_latest() == views["session_latest"]


def test_offsets_are_committed_behind_transaction_markers(platform: Settings) -> None:
    """So that retention, which drops the markers too, does not look like a loss. And what was aborted is nothing."""
    in_a_transaction(platform, shop(304, 60), commit=True)
    in_a_transaction(platform, shop(305, 60), commit=False)
    until(lambda: committed_offsets(platform, GROUP, SOURCES) == end_offsets(platform, SOURCES), 30, "all is committed")
    assert_derived(platform)


def test_money_is_written_with_the_digits_that_it_had(platform: Settings) -> None:
    text = (
        b'{"ref":"exact-1","guestRef":"g-exact","status":"PLACED","currency":"GBP","total":12.10,"items":[],'
        b'"createdAt":"2026-02-01T12:00:00.000Z","modifiedAt":"2026-02-01T12:00:00.000Z","unknown":0.1000000000000000055}'
    )
    value = b'{"provenance":{"apiVersion":"1","serviceName":"test","identifier":"exact-1"},"current":' + text + b"}"
    feed(platform, [Record("changelog.order", b"g-exact", value)])
    await_derived(platform)
    with Reader(platform, {"latest.order": dict.fromkeys(range(platform.kafka.partitions), 0)}) as reader:
        entries = [entry for some in reader.read_to(reader.ends()) for entry in some if entry.key == b"exact-1"]
    assert [entry.value for entry in entries] == [text]


@contextmanager
def following(entity: str) -> Iterator["subprocess.Popen[str]"]:
    process = start("latest", entity, "--json", "--follow")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def lines_until(process: "subprocess.Popen[str]", ref: str, deleted: bool = False) -> dict[str, Any]:
    """The next line about ``ref``: of a version, or of a delete. The test's own time limit ends the waiting."""
    assert process.stdout is not None
    for text in process.stdout:
        line = json.loads(text)
        if line["ref"] == ref and (line["current"] is None) == deleted:
            return dict(line)
    raise AssertionError(f"it ended without a word about {ref}: {process.stderr and process.stderr.read()}")


@pytest.mark.timeout(60)
def test_who_follows_is_told_of_creates_updates_and_deletes(platform: Settings) -> None:
    feed(platform, [session("followed")])
    with following("session") as process:
        assert lines_until(process, "followed")["current"]["channel"] == "WEB"
        feed(platform, [session("followed", {"ref": "followed", "guestRef": GUEST, "channel": "WEB", "startedAt": TIME,
                                             "modifiedAt": TIME}, channel="EMAIL")])  # fmt: skip
        line = lines_until(process, "followed")
        assert (line["current"]["channel"], line["serviceName"]) == ("EMAIL", "test")
        feed(platform, [session("followed", line["current"], deleted=True)])
        assert lines_until(process, "followed", deleted=True)["offset"] > line["offset"]


def said_of(said: Said, oracle: Oracle) -> None:
    """What it says is what plain Python says, of every entity."""
    for entity in DERIVED:
        there = oracle.entities[entity]
        assert said.count(entity) == len(there)
        for (guest, ref), current in there.items():
            version = said.get(entity, guest, ref)
            assert version is not None
            assert version.current == current
            found = said.find(entity, ref)
            assert found is not None
            assert found[1] == said.get(entity, found[0], ref), "of several guests' with one ref, one"
            assert found[1].offset >= version.offset or found[1].partition != version.partition


def test_what_the_log_last_said_is_known_at_once_to_who_writes(platform: Settings, tmp_path: Path) -> None:
    """From the derived topics and the rest of the log, copies of what lies before their end included; and then as the
    log grows, also where derive does not run."""
    await_derived(platform)
    run_derive = status()["derive"]["pid"]
    os.kill(run_derive, signal.SIGSTOP)
    try:
        feed(platform, shop(302, 600))
        feed(platform, shop(301, 600))  # copies, of which derive knows the originals
        said = Said(platform, tmp_path / "said", DERIVED)
        said.catch_up()
        said_of(said, fold(read_log(platform)))
    finally:
        os.kill(run_derive, signal.SIGCONT)
    with ChangelogProducer(platform) as producer:
        for record in shop(303, 300):
            producer.send(record)
    said.catch_up(at_least=producer.ends)
    said_of(said, fold(read_log(platform)))
    said.close()


def test_an_entity_that_has_no_versions_is_a_wrong_usage() -> None:
    assert "No such command 'event'" in run("latest", "event", status=2, error=True)


def alter(settings: Settings, kind: ResourceType, name: str, **values: str | None) -> None:
    """Set or, with None, take back settings of a topic or of the broker."""
    changes = [
        ConfigEntry(
            key.replace("_", "."),
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in values.items()
    ]
    client = admin(settings)
    for future in client.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=changes)]).values():
        future.result(20)


@pytest.fixture
def quick_compaction(platform: Settings) -> Iterator[None]:
    """Compaction that begins at once and forgets deletes after two seconds."""
    alter(platform, ResourceType.BROKER, "1", log_cleaner_backoff_ms="200")
    alter(platform, ResourceType.TOPIC, COMPACTED, segment_ms="200", min_cleanable_dirty_ratio="0.001",
          delete_retention_ms="2000")  # fmt: skip
    yield
    alter(platform, ResourceType.TOPIC, COMPACTED, segment_ms="3600000", min_cleanable_dirty_ratio=None,
          delete_retention_ms="86400000")  # fmt: skip
    alter(platform, ResourceType.BROKER, "1", log_cleaner_backoff_ms=None)


def nudge(settings: Settings, count: int) -> None:
    """Something new in the partition: what is newest is never compacted."""
    feed(settings, [session("nudge", {"ref": "nudge", "guestRef": GUEST, "channel": "WEB", "startedAt": TIME,
                                      "modifiedAt": TIME} if count else None, number=count)])  # fmt: skip


@pytest.mark.timeout(180)
def test_compaction_runs_and_a_reader_that_slept_through_a_delete_knows_it(
    platform: Settings, quick_compaction: None
) -> None:
    """A tombstone is gone before a stopped process, a reader in this one, and one that would go on from an offset come
    to it. The last is the control: it never hears of the delete."""
    feed(platform, [session("kept"), session("deleted")])
    await_derived(platform)
    before = end_offsets(platform, [COMPACTED])
    with Latest(platform, "session") as reader, following("session") as stopped:
        known = state(reader)
        assert {"kept", "deleted"} <= {ref for _, ref in known}
        lines_until(stopped, "deleted")
        stopped.send_signal(signal.SIGSTOP)
        nudge(platform, 0)  # answers the request that it has sent
        await_derived(platform)
        feed(platform, [session("deleted", {"ref": "deleted", "guestRef": GUEST, "channel": "WEB", "startedAt": TIME,
                                            "modifiedAt": TIME}, deleted=True)])  # fmt: skip
        await_derived(platform)
        count = 0

        def compacted() -> bool:
            nonlocal count
            count += 1
            nudge(platform, count)
            return not any(record.key == "deleted" for record in read_derived(platform, COMPACTED))

        until(compacted, 60, "the delete is compacted away")
        await_derived(platform)
        with Reader(platform, before) as naive:
            heard = {entry.key for some in naive.read_to(naive.ends()) for entry in some}
        assert b"nudge" in heard
        assert b"deleted" not in heard, "the control: who goes on from an offset misses the delete"
        batch = reader.read(5)
        assert batch.anew
        take(batch, known)
        assert "deleted" not in {ref for _, ref in folded(reader, known)}
        stopped.send_signal(signal.SIGCONT)
        assert lines_until(stopped, "deleted", deleted=True)["current"] is None
    with Latest(platform, "session") as fresh:
        assert state(fresh) == known
    assert by_guest("session", known) == fold(read_log(platform)).entities["session"]


def test_who_cannot_read_the_topic_before_deletes_are_dropped_is_told_so(
    platform: Settings, quick_compaction: None
) -> None:
    alter(platform, ResourceType.TOPIC, COMPACTED, delete_retention_ms="1")
    with pytest.raises(TerminalError, match=r"delete\.retention\.ms"), Latest(platform, "session") as reader:
        state(reader)
