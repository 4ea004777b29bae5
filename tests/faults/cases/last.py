"""What takes the log away, or the platform with it: the last cases, in this order."""

import json
from collections import defaultdict

from confluent_kafka.admin import NewPartitions

from batch.ingest import ingest
from batch.run import wait_for_archiver
from changelog.archive.secor import hour_of, object_name, pack_key
from changelog.archive.sequencefile import Writer
from changelog.topics import admin, end_offsets, start_offsets
from serving.wait import wait
from tests.faults.cases.speed import begin_anew
from tests.faults.catalogue import fault
from tests.faults.places import Objects, rows_of_view
from tests.faults.scene import Scene
from tests.faults.test_kills import assert_alerts_sent_once
from tests.oracle import LogRecord
from tests.services import READ, age_generations, assert_derived, let_go, read_log, run, status, until


@fault("platform.verified", alone=True)
def verified(scene: Scene) -> None:
    """No fault: after all cases before, the whole is folded anew, verified by `anabranch verify`, and checked; derived
    topics and alerts have everything once."""
    run("batch", "--full")
    report = json.loads(run("verify", "--json"))
    assert report["differences"] == []
    checked = scene.check()
    assert_derived(scene.settings)
    assert_alerts_sent_once(scene.settings)
    counted = {kind: number for kind, number in report["records"].items() if kind != "empty"}
    assert counted == checked.kinds, "good and bad are all, and verify counts them as plain code does"
    scene.report.told(", ".join(f"{number} {kind}" for kind, number in sorted(checked.kinds.items())))


def objects_of(scene: Scene, records: list[LogRecord]) -> dict[str, bytes]:
    """Records as the objects that another archiver would have made of them."""
    groups: dict[tuple[str, int, int], list[LogRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda r: r.offset):
        groups[record.topic, record.partition, hour_of(record.time // 1000)].append(record)
    found = {}
    for (topic, partition, hour), mine in groups.items():
        writer = Writer()
        for record in mine:
            writer.append(pack_key(record.offset, record.time // 1000, record.key), record.value or b"")
        name = object_name(scene.settings.s3.archive_prefix, topic, partition, hour, mine[0].offset)
        found[name] = writer.close()
    return found


@fault("retention.passed-the-archiver", alone=True, seconds=900)
def retention_passed_the_archiver(scene: Scene) -> None:
    """Kafka lets go of what the archiver has not read: the boundary stays before the hole, views stay exact, and when
    the objects come from another copy of the archive nothing is missing."""
    scene.batch()
    scene.covered()
    archived = end_offsets(scene.settings)
    scene.stop("archiver")
    scene.feed(400)
    wait(scene.settings)
    kept = [record for record in read_log(scene.settings) if record.offset >= archived[record.topic][record.partition]]
    let_go(scene.settings, end_offsets(scene.settings))
    scene.report.acted()
    scene.go_on("archiver")
    scene.feed(200)
    scene.covered()
    report = ingest(scene.spark, scene.settings)
    assert report.lost, "ingest does not say that something is missing"
    scene.report.told(f"{len(kept)} records had to be brought back")
    for name, content in objects_of(scene, kept).items():
        Objects(scene.settings).put(name, content)
    scene.report.acted()
    scene.batch()
    scene.check()


@fault("retention.passed-the-speed-layer", alone=True, seconds=900)
def retention_passed_the_speed_layer(scene: Scene) -> None:
    """Kafka lets go of what the speed layer has not read, and the archive has it: a new generation begins by itself,
    and after a batch run nothing is missing."""
    age_generations(scene.settings)
    scene.batch()
    before = scene.newest_generation()
    scene.stop("speed")
    scene.feed(400)
    assert wait_for_archiver(scene.settings, end_offsets(scene.settings), 90)
    assert not ingest(scene.spark, scene.settings).lost
    let_go(scene.settings, end_offsets(scene.settings))
    scene.feed(100)
    scene.report.acted()
    try:
        scene.go_on("speed")
        until(lambda: scene.newest_generation() > before, 120, "a new generation has an epoch")
    except BaseException:
        begin_anew(scene)
        raise
    scene.batch()
    scene.check()


@fault("retention.passed-everything", alone=True, seconds=900)
def retention_passed_everything(scene: Scene) -> None:
    """Kafka lets go of everything at once; a full recompute from the archive alone says the same."""
    scene.feed(200)
    scene.covered()
    scene.batch()
    before = {view: sorted(rows_of_view(scene.settings, view), key=str) for view in READ}
    let_go(scene.settings, end_offsets(scene.settings))
    assert start_offsets(scene.settings) == end_offsets(scene.settings)
    scene.report.acted()
    run("batch", "--full")
    after = {view: sorted(rows_of_view(scene.settings, view), key=str) for view in READ}
    assert [view for view in READ if before[view] != after[view]] == []
    scene.check()


@fault("topic.grown", alone=True, seconds=900)
def topic_grown(scene: Scene) -> None:
    """A topic gets another partition: speed, archiver, derive and ingest stop and say so, and nothing wrong is served.

    There is no way back: the platform ends here.
    """
    scene.feed(200)
    scene.check()
    before = {view: sorted(rows_of_view(scene.settings, view), key=str) for view in READ}
    client = admin(scene.settings)
    (future,) = client.create_partitions([NewPartitions("changelog.order", 5)]).values()
    future.result(30)
    scene.report.acted()
    for name in ("speed", "archiver", "derive"):
        until(lambda: status()[name]["state"] == "failed", 90, f"{name} stops")  # noqa: B023
        assert "changelog.order has 5 partitions, agreed are 4" in str(status()[name]["detail"]), name
    scene.feed(100)  # by writers to whom keys belong elsewhere now
    said = run("batch", status=1, error=True)
    assert "changelog.order has 5 partitions, agreed are 4" in said
    after = {view: sorted(rows_of_view(scene.settings, view), key=str) for view in READ}
    assert [view for view in READ if before[view] != after[view]] == []
    scene.report.told("stopped with a clear error")
    scene.report.lost = scene.report.doubled = 0
