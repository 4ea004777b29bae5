"""A guest is erased while everything runs, and the erasure is killed at the moments that are dangerous. Afterwards no
store has anything of the guest, and everybody else's rows are what they were.

The tests build on one another: the guest's life, the request, the erasure, the proof."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from batch.build import build
from batch.erasure import Proof, prove
from batch.maintenance import refs_of, tables_of
from batch.plan import Plan
from batch.run import wait_for_archiver
from batch.search import Wanted, in_topics
from changelog.archive.store import ArchiveStore, s3_client
from changelog.commands.client import await_outcome, send
from changelog.derived import DERIVED, latest_topic
from changelog.envelope import encode, envelope
from changelog.producer import Record
from changelog.topics import admin, end_offsets
from infra.airflow_api import AirflowApi
from runtime import ops
from runtime.errors import ConflictError
from runtime.settings import Settings
from serving.compare import compare
from serving.erasure import request
from tests.faults.report import killed
from tests.faults.test_kills import go_on, run_until_killed, stop
from tests.integration.test_airflow import clear
from tests.services import (
    READ,
    assert_exact,
    assert_verified,
    await_derived,
    batch,
    busy,
    feed,
    let_go,
    query,
    run,
    served,
    shop,
    start,
    status,
    until,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow]

GUEST, OTHER, THIRD = "e-guest-1", "e-guest-12", "e-guest-3"
EMAIL, OTHERS_EMAIL, THIRDS_EMAIL = "erased@private.example", "not.erased@private.example", "third@private.example"
NAME = "Ermintrude"
TIME = "2026-02-01T12:{:02d}:00.000Z"

POINTS = (
    "erase.requested", "publish.recorded", "erase.retired", "erase.before-object#2", "erase.between-tables#2",
    "erase.scrubbed",
)  # fmt: skip
"""Where the command, or a job that it runs, is killed: each once, one after another."""

OF_GUESTS = {
    "order_latest": "guest_ref", "session_latest": "guest_ref", "guest_latest": "ref", "guest_spend": "guest_ref",
    "sessions": "guest_ref", "cancellations": "guest_ref", "large_first_order": "guest_ref", "alerts": "guest_ref",
    "guest": "ref", "order_latest_states": "guest_ref", "sessions_states": "guest_ref",
}  # fmt: skip


def change(entity: str, guest: str, identifier: str, current: Any, original: Any = None) -> Record:
    return Record(f"changelog.{entity}", guest.encode(), encode(envelope("life", identifier, current, original)))


def life(guest: str, email: str, name: str = NAME) -> list[Record]:
    """Everything that a guest can do: sessions, orders that are paid and cancelled, one with a number for a ref,
    events, copies, and broken records of his own and of others that name him, in whatever spelling."""
    about = {"ref": guest, "email": email, "firstName": name, "createdAt": TIME.format(0), "modifiedAt": TIME.format(0)}
    session = {"ref": f"{guest}-s", "guestRef": guest, "channel": "WEB", "startedAt": TIME.format(1),
               "modifiedAt": TIME.format(1)}  # fmt: skip
    made = [
        change("guest", guest, f"{guest}-born", about),
        change("guest", guest, f"{guest}-moved", {**about, "country": "FR"}, about),
        change("session", guest, f"{guest}-session", session),
    ]
    for number in range(4):
        event = {"ref": f"{guest}-e{number}", "guestRef": guest, "type": "VIEW", "channel": "WEB", "page": "/",
                 "createdAt": TIME.format(number)}  # fmt: skip
        ref = f"{guest}-o{number}" if number < 3 else f"{700 + len(guest)}{number}"
        order = {"ref": ref, "guestRef": guest, "status": "PLACED", "currency": "GBP", "total": 700,
                 "items": [{"sku": "s", "quantity": 1, "unitPrice": 700}], "createdAt": TIME.format(10 + number),
                 "modifiedAt": TIME.format(10)}  # fmt: skip
        made += [
            change("event", guest, f"{guest}-e{number}", event),
            change("order", guest, f"{guest}-o{number}", order),
        ]
        if number:
            made += [change("order", guest, f"{guest}-c{number}", {**order, "status": "CANCELLED"}, order)]
    made += made[4:6]
    made += [
        Record("changelog.order", guest.encode(), b"{"),
        Record("changelog.event", guest.encode(), None),
        Record("changelog.order", b"somebody", json.dumps({"guestRef": guest, "broken": True}).encode()),
        Record("changelog.guest", b"somebody", json.dumps({"email": email}).replace("@", "\\u0040").encode()),
    ]
    return made


def rows_of(settings: Settings, guest: str) -> dict[str, int]:
    """How many rows of a guest each view shows."""
    return {
        view: query(settings, f"SELECT count(*) FROM serving.{view} WHERE {column} = '{guest}'")[0][0]
        for view, column in OF_GUESTS.items()
    }


def without_guest(answer: dict[str, set[tuple[Any, ...]]]) -> dict[str, set[tuple[Any, ...]]]:
    """The rows of views that have a guest column, but for the guest's."""
    views = [view for view in READ if view in OF_GUESTS]
    return {view: {row for row in answer[view] if GUEST not in row} for view in views}


def number_of_erasure(settings: Settings) -> int:
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT max(erasure) AS erasure FROM erasures").fetchone()
    assert row is not None
    return int(row["erasure"])


def state(settings: Settings) -> dict[str, Any]:
    """The row of the last erasure."""
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT * FROM erasures ORDER BY erasure DESC LIMIT 1").fetchone()
    assert row is not None
    return row


def found(proof: Proof) -> set[str]:
    return {store.store for store in proof.found}


def test_control_before_the_erasure_the_search_finds_the_guest_in_every_store(
    platform: Settings, lake: SparkSession, tmp_path: Path
) -> None:
    feed(platform, shop(601, 400))
    feed(platform, life(GUEST, EMAIL))
    feed(platform, life(OTHER, OTHERS_EMAIL, "Otto"))
    command = {"id": "e-1", "guestRef": GUEST, "set": {"email": EMAIL}}
    assert await_outcome(platform, send(platform, "update-guest", command)).status == "rejected"
    assert_exact(platform)
    batch(lake, platform, Plan(full=True))
    path = tmp_path / "letters.jsonl"
    run("dead-letters", "export", str(path))
    letters = [json.loads(line) for line in path.read_text().splitlines()]
    (letter,) = [one for one in letters if one["key"] == GUEST]
    event = {"ref": f"{GUEST}-mended", "guestRef": GUEST, "type": "VIEW", "channel": "WEB", "createdAt": TIME.format(9)}
    letter |= {"entity": "event", "envelope": envelope("life", f"{GUEST}-mended", event)}
    path.write_text(json.dumps(letter) + "\n")
    run("dead-letters", "replay", str(path))
    run("batch")  # copies and the mended letter: a second publication, with the guest on both sides
    assert_exact(platform)
    await_derived(platform)
    assert all(rows_of(platform, GUEST).values())
    there = found(prove(platform, GUEST))
    topics = [f"changelog.{entity}" for entity in ("guest", "session", "order", "event")]
    topics += [f"{kind}.{entity}" for kind in ("latest", "patch") for entity in DERIVED]
    topics += ["alert.cancellations", "alert.large_first_order", "command.update-guest", "command.outcomes"]
    assert there >= {f"kafka: {topic}" for topic in topics}
    assert there >= {"bucket: archive", "bucket: lake", "database: ops"}
    assert there >= {"directory: histories", "directory: commands"}
    assert found(prove(platform, "e-guest-nobody")) == set()


def test_a_request_hides_the_guest_at_once_and_nothing_else_changes(platform: Settings, lake: SparkSession) -> None:
    before = served(platform)
    stop(platform, "derive")
    process = start("erase-guest", GUEST, ANABRANCH_KILL_AT=POINTS[0])
    process.communicate(timeout=240)
    assert process.returncode == -9
    killed()
    assert request(platform, GUEST) == request(platform, GUEST) == number_of_erasure(platform)
    assert set(rows_of(platform, GUEST).values()) == {0}
    assert all(rows_of(platform, OTHER).values())
    after = served(platform)
    assert without_guest(after.views) == without_guest(before.views)
    assert query(platform, f"SELECT count(*) FROM ops.audit WHERE guest_ref = '{GUEST}'") == [[0]]
    assert query(platform, f"SELECT count(*) FROM ops.bad_records WHERE from_utf8(value) LIKE '%{GUEST}\"%'") == [[0]]
    assert query(platform, f"SELECT count(*) FROM ops.audit WHERE guest_ref = '{OTHER}'")[0][0] > 10
    assert json.loads(run("audit", "--guest", GUEST, "--json"))["total"] == 0
    assert_verified(lake, platform)
    run_until_killed("changelog.derive", "derive.buried")
    assert state(platform)["derived_at"] is None
    go_on(platform, "derive")
    until(lambda: state(platform)["derived_at"] is not None, 60, "the newest versions are taken away")
    for entity in DERIVED:
        newest = [json.loads(line) for line in run("latest", entity, "--json").splitlines()]
        guests = {one["current"].get("guestRef", one["ref"]) for one in newest}
        assert GUEST not in guests
        assert OTHER in guests


def test_nothing_of_the_guest_goes_in_any_more(platform: Settings, tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    value = json.loads(life(GUEST, EMAIL)[0].value or b"")
    path.write_text(json.dumps({"entity": "guest", "envelope": value}) + "\n")
    assert "erased" in run("load", str(path), status=1, error=True)
    until(lambda: status()["commands"]["state"] == "running", 60, "commands has begun again")
    sent = send(platform, "update-guest", {"id": "e-2", "guestRef": GUEST, "create": True, "set": {"country": "FR"}})
    outcome = await_outcome(platform, sent)
    assert [reason.code for reason in outcome.reasons] == ["erased"]
    assert GUEST not in outcome.encode().decode()


@pytest.mark.timeout(1500)
def test_the_erasure_is_killed_again_and_again_and_goes_on(platform: Settings, lake: SparkSession) -> None:
    feed(platform, life(GUEST, EMAIL)[5:9])  # by somebody who did not hear of it
    with busy(platform, 900):
        for point in POINTS[1:]:
            process = start("erase-guest", "--resume", ANABRANCH_KILL_AT=point)
            out, err = process.communicate(timeout=400)
            assert process.returncode not in (0, None), f"{point}\n{out}\n{err}"
            assert (platform.home / f"killed-at-{point}").exists(), f"{point}\n{out}\n{err}"
            killed()
        said = run("erase-guest", "--resume", "--json", status=1)
    proof = json.loads(said.strip().splitlines()[-1])
    left = {store["store"] for store in proof["stores"] if store["number"]}
    assert all(store.startswith("kafka: ") for store in left), left
    assert proof["waiting"]
    assert state(platform)["state"] == "waiting"
    assert_exact(platform)
    assert set(rows_of(platform, GUEST).values()) == {0}
    assert all(rows_of(platform, OTHER).values())
    assert_verified(lake, platform)
    (erased,) = query(platform, "SELECT sum(erased) FROM ops.epochs WHERE generation = "
                                "(SELECT max(generation) FROM ops.epochs)")  # fmt: skip
    assert erased[0] > 0, "what still came is counted"
    texts = query(platform, "SELECT view_definition FROM lake.information_schema.views WHERE table_schema = 'serving'")
    assert not any("erasing" in text for (text,) in texts), "nobody has to be hidden any more"


def test_a_recompute_from_the_raw_objects_says_the_same(platform: Settings, lake: SparkSession) -> None:
    made = batch(lake, platform, Plan(full=True, objects=True, run_id="objects"), serve=False)
    assert {view.view: view.differing for view in compare(platform, made.run_id).views if view.differing} == {}


def test_a_run_that_is_retired_while_it_folds_stays_retired_and_leaves_nothing(
    platform: Settings, lake: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the erasure retires those that are under way on the generation before."""

    def point(name: str) -> None:
        if name == "build.between-views":
            with ops.connect(platform) as connection:
                connection.execute("UPDATE runs SET state = 'retired' WHERE run_id = 'late'")

    monkeypatch.setattr("runtime.faults.point", point)
    with pytest.raises(ConflictError, match="was retired while it folded"):
        build(lake, platform, Plan(full=True, run_id="late"))
    refs = [row["name"] for table in tables_of(lake, "batch") for row in refs_of(lake, table)]
    assert [name for name in refs if "late" in name] == []
    with ops.connect(platform) as connection:
        assert connection.execute("SELECT state FROM runs WHERE run_id = 'late'").fetchone() == {"state": "retired"}


def test_kafka_is_waited_for_and_then_nothing_is_found_anywhere(platform: Settings) -> None:
    run("erase-guest", "--resume", "--purge-log", status=1)
    left = found(prove(platform, GUEST, number_of_erasure(platform)))
    assert not any(store.startswith(("kafka: changelog", "kafka: patch", "kafka: command.update")) for store in left)
    retention_passes(platform)
    compaction_passes(platform)
    process = start("erase-guest", "--resume", ANABRANCH_KILL_AT="erase.forgotten")
    out, err = process.communicate(timeout=240)
    assert process.returncode == -9, f"{out}\n{err}"
    killed()
    assert (state(platform)["state"], state(platform)["ref"]) == ("waiting", None)
    run("erase-guest", "--resume")
    row = state(platform)
    assert (row["state"], row["ref"], row["identifying"]) == ("done", None, None)
    assert sum(row["records"]["changelog.order"].values()) > 5
    assert row["left_out"] >= 1  # the order whose ref is a number
    for who in (GUEST, EMAIL, NAME, f"{GUEST}-o1"):
        proof = prove(platform, who)
        assert found(proof) == set()
        assert sum(store.searched for store in proof.stores) > 1000
    assert json.loads(run("erase-guest", GUEST, "--prove", "--json"))["waiting"] == []
    assert GUEST not in run("erasures", "--json")


def retention_passes(settings: Settings) -> None:
    """Of topics that nobody cuts off: everything that is there now."""
    topics = ["command.outcomes", "alert.cancellations", "alert.large_first_order", "alert.cart_abandoned"]
    let_go(settings, end_offsets(settings, topics))


QUICK_COMPACTION = {
    "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "100",
    "max.compaction.lag.ms": "200",
}  # fmt: skip


@contextmanager
def compacted_quickly(settings: Settings) -> Iterator[None]:
    """The topics of newest versions meanwhile with other settings than those that their readers need."""
    client, topics = admin(settings), [ConfigResource(ResourceType.TOPIC, latest_topic(entity)) for entity in DERIVED]
    before = {
        topic.name: {name: future.result(30)[name].value for name in QUICK_COMPACTION}
        for topic, future in client.describe_configs(topics).items()
    }

    def alter(values: Mapping[str, Mapping[str, str]]) -> None:
        resources = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in entries.items()
            ])
            for topic, entries in values.items()
        ]  # fmt: skip
        for future in client.incremental_alter_configs(resources).values():
            future.result(30)

    alter(dict.fromkeys(before, QUICK_COMPACTION))
    try:
        yield
    finally:
        alter(before)


def compaction_passes(settings: Settings) -> None:
    """Of the newest versions: old ones and their tombstones go, as others are written."""
    row, seeds = state(settings), count(700)
    wanted = Wanted(row["ref"], row["identifying"])

    def gone() -> bool:
        feed(settings, shop(next(seeds), 100))
        await_derived(settings)
        return not any(topic.number for topic in in_topics(settings, wanted))

    with compacted_quickly(settings):
        until(gone, 180, "the cleaner has passed the guest's newest versions")


def test_nobody_comes_back_with_what_comes_later(platform: Settings, lake: SparkSession) -> None:
    """And the same command once more takes away what has named the guest since."""
    feed(platform, life(GUEST, EMAIL))
    run("wait")
    assert set(rows_of(platform, GUEST).values()) == {0}
    assert wait_for_archiver(platform, end_offsets(platform), 90)
    stored = raw_objects(platform)
    batch(lake, platform)
    assert set(rows_of(platform, GUEST).values()) == {0}
    rewritten = raw_objects(platform)
    named = {key: data for key, data in stored.items() if rewritten[key] != data}
    assert named, "ingest takes bad records that name him out of the raw archive"
    kept = query(platform, "SELECT count(*) FROM lake.archive.\"order\" WHERE kind = 'erased' "
                           "AND key IS NULL AND value IS NULL AND append_time IS NOT NULL")  # fmt: skip
    assert kept[0][0] > 10
    assert_verified(lake, platform)
    there = found(prove(platform, GUEST))
    assert "kafka: changelog.order" in there
    assert not any(store.startswith(("kafka: latest", "kafka: patch", "kafka: alert")) for store in there)
    assert not there & {"bucket: archive", "bucket: lake", "database: ops"}
    assert not there & {"directory: histories", "directory: commands"}
    run("erase-guest", GUEST, "--purge-log")
    assert found(prove(platform, GUEST)) == set()
    assert state(platform)["state"] == "done"
    assert_verified(lake, platform)
    for key, data in named.items():  # from a copy that was made before
        s3_client(platform.s3).put_object(Bucket=platform.s3.archive_bucket, Key=key, Body=data)
    assert found(prove(platform, GUEST)) == {"bucket: archive"}
    run("batch")
    assert found(prove(platform, GUEST)) == set()
    assert_verified(lake, platform)


def raw_objects(settings: Settings) -> dict[str, bytes]:
    store = ArchiveStore(settings.s3)
    return {item.key: store.get(item.key) for topic in settings.topics for item in store.list_objects(topic)}


@pytest.mark.timeout(1500)
def test_airflow_erases_by_its_dag(airflow: AirflowApi, platform: Settings, lake: SparkSession) -> None:
    """Task by task, and the proof when Kafka's retention has passed; its form forgets who was asked for."""
    feed(platform, life(THIRD, THIRDS_EMAIL, "Thea"))
    run("wait")
    batch(lake, platform)
    assert rows_of(platform, THIRD)["order_latest"] > 0
    asked = airflow.trigger("erase_guest", ref=THIRD, purge_log=True)

    def is_clean() -> bool:
        tasks = airflow.tasks("erase_guest", asked)
        assert "failed" not in tasks.values(), tasks
        return (tasks["clean"], tasks["prove"]) == ("success", "up_for_reschedule")

    until(is_clean, 900, "every store but Kafka is without the guest")
    assert state(platform)["state"] == "waiting"
    assert set(rows_of(platform, THIRD).values()) == {0}
    retention_passes(platform)
    compaction_passes(platform)
    clear(airflow, "erase_guest", asked, "prove")  # it would look again within the hour
    assert set(airflow.wait("erase_guest", asked, 300).values()) == {"success"}
    assert (state(platform)["state"], state(platform)["ref"]) == ("done", None)
    for who in (THIRD, THIRDS_EMAIL):
        assert found(prove(platform, who)) == set()
    assert THIRD not in json.dumps(airflow.get(f"dags/erase_guest/dagRuns/{asked}"))
    assert_verified(lake, platform)
