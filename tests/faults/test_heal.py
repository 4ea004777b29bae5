"""State of the speed layer is lost, and Kafka lets go of what it has not read: it begins a new generation by itself,
and after the next batch run every answer is exact. Where nobody has what is missing it stops and names the command.

The tests share one platform and go on where the one before left off. The last two take the log away.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch.backlog import has_work
from batch.build import build
from batch.ingest import ingest
from batch.plan import Plan
from batch.run import wait_for_archiver
from changelog.archive.secor import partition_of, read_object, start_of
from changelog.archive.store import ArchiveStore, s3_client
from changelog.positions import Vector, from_json
from changelog.topics import end_offsets, start_offsets
from infra import supervise
from runtime import ops
from runtime.errors import TransientError
from runtime.settings import Settings
from serving import publication
from serving import watch as watching
from serving.wait import wait
from speed.checkpoint import stand
from speed.generation import Generation, newest
from tests.faults.test_kills import assert_alerts_sent_once, go_on, points, run_until_killed, stop
from tests.oracle import LogRecord
from tests.services import (
    READ,
    Answer,
    age_generations,
    alerts_sent,
    assert_verified,
    await_derived,
    batch,
    feed,
    fold,
    let_go,
    query,
    read_log,
    run,
    served,
    shop,
    start,
    status,
    until,
)

pytestmark = pytest.mark.faults

ALERTS = "SELECT pattern, guest_ref, source_partition, source_offset FROM serving.alerts"

SEEDS = iter(range(800, 900))


LOG: dict[tuple[str, int, int], LogRecord] = {}
"""What Kafka has had."""


def assert_exact(settings: Settings) -> None:
    """Wait until everything acknowledged is covered, and compare every view with plain Python over what Kafka had."""
    remember(settings)
    wait(settings, timeout_seconds=240)
    oracle = fold([LOG[place] for place in sorted(LOG)])
    assert served(settings).difference(Answer({view: getattr(oracle, view)() for view in READ})) == ""


def remember(settings: Settings) -> None:
    LOG.update(((record.topic, record.partition, record.offset), record) for record in read_log(settings))


def running(settings: Settings) -> Generation:
    """The newest generation."""
    with ops.connect(settings) as connection:
        found = newest(connection, "main")
    assert found
    return found


def has_epochs(settings: Settings, generation: int) -> bool:
    return query(settings, f"SELECT count(*) FROM ops.epochs WHERE generation = {generation}") != [[0]]


def prepare(settings: Settings, lake: SparkSession) -> Generation:
    """A generation that is served from both sides, and that has stopped with records before it."""
    age_generations(settings)
    feed(settings, shop(next(SEEDS), 300))
    batch(lake, settings)
    feed(settings, shop(next(SEEDS), 300))
    assert_exact(settings)
    stop(settings, "speed")
    feed(settings, shop(next(SEEDS), 300))
    return running(settings)


def begun_after(settings: Settings, before: Generation) -> Generation:
    """The generation that the speed layer begins by itself, once it has an epoch."""
    until(lambda: running(settings).number > before.number, 90, "another generation is begun")
    begun = running(settings)
    until(lambda: has_epochs(settings, begun.number), 90, "it has an epoch")
    assert begun.number == before.number + 1
    return begun


def told(settings: Settings, generation: int) -> str:
    """What is told of a generation that was begun, after two looks; once."""
    for _ in range(2):
        found = watching.watch(settings)
    name = f"generation {generation} was begun"
    with ops.connect(settings) as connection:
        rows = connection.execute("SELECT told, ended_at FROM alerts WHERE alert = %s", (name,)).fetchall()
    assert rows == [{"told": "raised", "ended_at": None}]
    return found.alerts[name]


def last_file(directory: Path) -> Path:
    return directory / str(max(int(path.name) for path in directory.glob("[0-9]*")))


def cut(path: Path, share: float) -> None:
    """What a power cut leaves of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def lose_it(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def lose_the_newest_plan(checkpoint: Path) -> None:
    """Directory entries go as well: the epoch was written, and the checkpoint does not know of it."""
    last_file(checkpoint / "commits").unlink()
    last_file(checkpoint / "offsets").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lose_it, lose_the_newest_plan])
def test_a_lost_or_damaged_checkpoint_is_answered_by_a_new_generation(
    platform: Settings, lake: SparkSession, damage: Callable[[Path], None]
) -> None:
    before = prepare(platform, lake)
    stood_still = served(platform)
    damage(before.checkpoint(platform))
    go_on(platform, "speed")
    begun = begun_after(platform, before)
    assert begun.cause == "checkpoint"
    assert str(begun.reason) in str(status()["speed"]["detail"])
    assert served(platform).difference(stood_still) == "", "the views stand on the generation before, exact as it was"
    assert has_work(platform)
    with pytest.raises(TransientError, match=f"the views stand on generation {before.number}"):
        wait(platform, timeout_seconds=0)
    said = told(platform, begun.number)
    assert str(begun.reason) in said
    assert "stand still" in said
    batch(lake, platform)
    assert_exact(platform)
    assert_alerts_sent_once(platform)
    assert query(platform, "SELECT DISTINCT generation FROM serving.boundary") == [[begun.number]]
    assert "all views stand on it" in watching.watch(platform).alerts[f"generation {begun.number} was begun"]
    age_generations(platform)
    assert f"generation {begun.number} was begun" not in watching.watch(platform).alerts


@pytest.mark.slow
def test_a_damaged_note_that_an_epoch_is_done_is_mended_in_place(platform: Settings, lake: SparkSession) -> None:
    """The epoch is run again over the same part of the log, and replaces itself."""
    before = prepare(platform, lake)
    cut(last_file(before.checkpoint(platform) / "commits"), 0.5)
    cut(before.checkpoint(platform) / "metadata", 0.5)  # a name, of which Spark makes another
    cut(before.checkpoint(platform) / "sources" / "0" / "0", 0.5)  # that is not read again
    at = stand(before.checkpoint(platform))
    go_on(platform, "speed")
    assert_exact(platform)
    assert_alerts_sent_once(platform)
    assert running(platform) == before
    assert stand(before.checkpoint(platform)).done > at.done


@pytest.mark.slow
def test_histories_that_are_cut_off_are_filled_again(platform: Settings, lake: SparkSession) -> None:
    """Reading them as they are would end the process that does."""
    before = prepare(platform, lake)
    cut(before.histories(platform) / "1" / "data.mdb", 0.5)
    go_on(platform, "speed")
    assert begun_after(platform, before).cause == "histories"
    batch(lake, platform)
    assert_exact(platform)
    assert_alerts_sent_once(platform)


@pytest.mark.slow
def test_identities_that_are_cut_off_are_made_anew(platform: Settings, lake: SparkSession) -> None:
    before = prepare(platform, lake)
    for store in before.identities(platform).iterdir():
        cut(store / "data.mdb", 0.5)
    go_on(platform, "speed")
    assert_exact(platform)
    assert running(platform) == before


@pytest.mark.slow
@pytest.mark.parametrize("point", points("speed.renewed", "speed.lost"))
def test_killed_while_it_begins_another_generation_it_begins_one(
    platform: Settings, lake: SparkSession, point: str
) -> None:
    before = prepare(platform, lake)
    shutil.rmtree(before.checkpoint(platform))
    run_until_killed("speed.app", point)
    go_on(platform, "speed")
    begun_after(platform, before)
    batch(lake, platform)
    assert_exact(platform)


def test_of_two_that_run_at_once_one_has_the_state(platform: Settings) -> None:
    before = running(platform)
    second = start(module="speed.app")
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "another speed application" in err
    assert running(platform) == before
    assert_exact(platform)


@pytest.mark.slow
def test_what_is_lost_again_and_again_is_left_to_the_operator(platform: Settings, lake: SparkSession) -> None:
    before = prepare(platform, lake)
    shutil.rmtree(before.checkpoint(platform))
    go_on(platform, "speed")
    begun = begun_after(platform, before)
    stop(platform, "speed")
    shutil.rmtree(begun.checkpoint(platform))
    supervise.start_service(platform, "speed")
    assert_stops("for the same cause (checkpoint)", "anabranch generation new")
    assert running(platform) == begun
    assert "speed does not work" in watching.watch(platform).alerts
    run("generation", "new")
    until(lambda: has_epochs(platform, begun.number + 1), 90, "the new generation has an epoch")
    batch(lake, platform)
    assert_exact(platform)


def assert_stops(*says: str) -> None:
    """The speed layer stops for good, saying so."""
    until(lambda: status()["speed"]["state"] == "failed", 60, "it stops")
    for one in says:
        assert one in str(status()["speed"]["detail"])


def places_in(store: ArchiveStore, keys: set[str]) -> set[tuple[str, int | None, int]]:
    """(topic, partition, offset) of every record in objects of the archive."""
    return {
        (key.split("/")[-4], partition_of(key), record.offset)
        for key in keys
        for record in read_object(store.get(key), key)
    }


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(None, id="deleted"), pytest.param(0.5, id="cut")])
def test_what_the_newest_object_of_the_archive_has_lost_is_taken_from_kafka(
    platform: Settings, lake: SparkSession, share: float | None
) -> None:
    """No later object shows the gap; the archiver has committed that there is more. What it had is stored anew."""
    batch(lake, platform)
    feed(platform, shop(next(SEEDS), 300))
    ends = end_offsets(platform)
    assert wait_for_archiver(platform, ends, 90)
    store, client = ArchiveStore(platform.s3), s3_client(platform.s3)
    key = max((start_of(item.key), item.key) for item in store.list_objects("changelog.order"))[1]
    data, had = store.get(key), places_in(store, {key})
    bucket = platform.s3.archive_bucket
    if share is None:
        client.delete_object(Bucket=bucket, Key=key)
    else:
        client.put_object(Bucket=bucket, Key=key, Body=data[: int(len(data) * share)])
    report = ingest(lake, platform)
    if share is not None:
        client.delete_object(Bucket=bucket, Key=key)
    assert report.mended > 0
    assert had <= places_in(store, {item.key for item in store.list_objects("changelog.order")})
    assert report.lost == []
    assert [key in alarm for alarm in report.alarms] == ([] if share is None else [True])
    assert from_json(report.archived) == ends
    batch(lake, platform)
    assert_exact(platform)


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0, id="empty"), pytest.param(0.5, id="cut")])
def test_an_object_that_is_damaged_after_it_was_ingested_is_stored_anew(
    platform: Settings, lake: SparkSession, share: float
) -> None:
    """The columnar archive is past it, so that nothing waits for what it had; and it can be deleted."""
    feed(platform, shop(next(SEEDS), 300))
    assert wait_for_archiver(platform, end_offsets(platform), 90)
    batch(lake, platform)
    store, client, bucket = ArchiveStore(platform.s3), s3_client(platform.s3), platform.s3.archive_bucket
    keys = {topic: max((start_of(i.key), i.key) for i in store.list_objects(topic))[1] for topic in platform.topics}
    had = places_in(store, set(keys.values()))
    for key in keys.values():
        client.put_object(Bucket=bucket, Key=key, Body=store.get(key)[: int(len(store.get(key)) * share)])
    listed = []
    for _ in range(2):
        alarms = "".join(ingest(lake, platform).alarms)
        assert [key for key in keys.values() if key not in alarms] == []
        listed.append({item.key for topic in platform.topics for item in store.list_objects(topic)})
    assert listed[0] == listed[1]
    for key in keys.values():
        client.delete_object(Bucket=bucket, Key=key)
    assert had <= places_in(store, listed[0] - set(keys.values()))
    report = ingest(lake, platform)
    assert (report.alarms, report.lost) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0, id="empty"), pytest.param(0.6, id="cut")])
def test_the_archiver_stores_beside_a_damaged_object_all_that_it_had(
    platform: Settings, lake: SparkSession, share: float
) -> None:
    """It was stored and not committed, and is consumed again. Moved away, the damaged one takes nothing with it."""
    batch(lake, platform)
    store, client, bucket = ArchiveStore(platform.s3), s3_client(platform.s3), platform.s3.archive_bucket
    before = {item.key for topic in platform.topics for item in store.list_objects(topic)}
    stop(platform, "archiver")
    feed(platform, shop(next(SEEDS), 300))
    run_until_killed("changelog.archive.archiver", f"archiver.before-commit#{2 if share else 1}")
    stored = {item.key for topic in platform.topics for item in store.list_objects(topic)} - before
    assert stored
    had = places_in(store, stored)
    for key in stored:
        client.put_object(Bucket=bucket, Key=key, Body=store.get(key)[: int(len(store.get(key)) * share)])
    go_on(platform, "archiver")
    assert wait_for_archiver(platform, end_offsets(platform), 90)
    assert set(ingest(lake, platform).alarms) != set()
    for key in stored:
        client.delete_object(Bucket=bucket, Key=key)
    report = ingest(lake, platform)
    left = {item.key for topic in platform.topics for item in store.list_objects(topic)} - before
    assert had
    assert had <= places_in(store, left)
    assert (report.alarms, report.lost) == ([], [])
    assert from_json(report.archived) == end_offsets(platform)
    run = build(lake, platform, Plan(objects=True))
    publication.publish(platform, run.run_id, back=True)
    assert_exact(platform)


def remembered_and_gone(settings: Settings, positions: Vector) -> None:
    """Let Kafka's retention pass up to ``positions``, of what is known here and derived."""
    remember(settings)
    await_derived(settings)
    let_go(settings, positions)
    assert start_offsets(settings) == positions


def assert_no_alert_twice(settings: Settings) -> None:
    """What matched before the generation begins, in records that Kafka let go of, is in the views and is not sent."""
    sent = alerts_sent(settings)
    assert len(sent) == len(set(sent)) > 0
    assert {tuple(row) for row in query(settings, ALERTS)} >= set(sent)


@pytest.mark.slow
def test_retention_that_has_passed_the_stream_is_answered_from_the_archive(
    platform: Settings, lake: SparkSession
) -> None:
    """Kafka's log begins where the archive ends. Copies come of records that only the archive has."""
    before = prepare(platform, lake)
    records = shop(next(SEEDS), 300)
    feed(platform, records)
    ends = end_offsets(platform)
    assert wait_for_archiver(platform, ends, 90)
    assert not ingest(lake, platform).lost
    remembered_and_gone(platform, ends)
    feed(platform, records)
    feed(platform, shop(next(SEEDS), 300))
    go_on(platform, "speed")
    begun = begun_after(platform, before)
    assert begun.cause == "retention"
    assert begun.start == begun.warm == ends
    assert "Kafka let go of" in told(platform, begun.number)
    batch(lake, platform)
    assert_exact(platform)
    assert_verified(lake, platform)
    assert_no_alert_twice(platform)


@pytest.mark.slow
def test_it_waits_for_the_archive_and_stops_where_that_lacks_a_part(platform: Settings, lake: SparkSession) -> None:
    before = prepare(platform, lake)
    ends = end_offsets(platform)
    assert wait_for_archiver(platform, ends, 90)
    remembered_and_gone(platform, ends)
    store, client = ArchiveStore(platform.s3), s3_client(platform.s3)
    key = max((start_of(item.key), item.key) for item in store.list_objects("changelog.order"))[1]
    data = store.get(key)
    client.delete_object(Bucket=platform.s3.archive_bucket, Key=key)
    supervise.start_service(platform, "speed")
    until(lambda: "it is not ingested yet" in str(status()["speed"]["detail"]), 60, "it waits")
    assert "speed does not work" in watching.watch(platform).alerts, "and that is told"
    feed(platform, shop(next(SEEDS), 300))  # objects behind the hole
    assert wait_for_archiver(platform, end_offsets(platform), 90)
    assert running(platform) == before
    lost = ingest(lake, platform).lost
    assert len(lost) == 1
    assert_stops(f"anabranch batch --accept-hole {lost[0]}; then anabranch up")
    client.put_object(Bucket=platform.s3.archive_bucket, Key=key, Body=data)
    assert ingest(lake, platform).lost == []
    run("up")
    assert begun_after(platform, before).cause == "retention"
    batch(lake, platform)
    assert_exact(platform)
    assert_verified(lake, platform)
    assert_no_alert_twice(platform)
