"""The raw archive: the archiver, and its objects."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from batch.ingest import ingest
from changelog.archive.secor import start_of
from infra.services import data
from tests.faults.catalogue import fault
from tests.faults.checker import DOUBLED, RAW
from tests.faults.places import Objects
from tests.faults.report import kill
from tests.faults.scene import Scene
from tests.services import until

STORED_TWICE = frozenset({(RAW, DOUBLED)})
"""The raw archive is at-least-once: of two archivers at work both may store an offset. Ingest takes it once."""

ARCHIVER = "changelog.archive.archiver"


@fault("archiver.killed-at-random")
def archiver_killed_at_random(scene: Scene) -> None:
    """The archiver is killed fifteen times while records come."""
    with scene.load(rate=60):
        for _ in range(15):
            scene.kill("archiver")
            scene.somewhen(3)
    scene.check()


@fault("archiver.zombie")
def archiver_zombie(scene: Scene) -> None:
    """The archiver stands still for longer than its session lasts, another one takes over, then it wakes up."""
    with scene.load(rate=60):
        with scene.frozen("archiver"):
            other = scene.spawn(module=ARCHIVER)
            before = scene.archiver_position()
            until(lambda: scene.archiver_position() > before + 200, 60, "the other one stores")
        after = scene.archiver_position()
        until(lambda: scene.archiver_position() > after + 200, 60, "both together store")
        other.send_signal(signal.SIGTERM)
        other.wait(60)
    scene.check(STORED_TWICE)


@fault("archiver.rebalanced")
def archiver_rebalanced(scene: Scene) -> None:
    """A second archiver joins, the first is killed, comes back, and then the second is killed."""
    with scene.load(rate=60):
        second = scene.spawn(module=ARCHIVER)
        until(lambda: " records, " in scene.said(second), 60, "the second one stores its share")
        scene.kill("archiver")
        scene.somewhen(4)
        assert second.poll() is None, "the second archiver has ended by itself"
        kill(second.pid)
        second.wait(60)
    scene.check(STORED_TWICE)


@contextmanager
def fresh_objects(scene: Scene) -> Iterator[tuple[Objects, dict[str, bytes], list[str]]]:
    """Objects that no ingest has read yet, key → bytes, and a list for the keys of what a case adds; afterwards all are
    as they were."""
    if not scene.archiver_position():
        scene.feed(300)
        scene.covered()
    scene.batch()
    objects, added = Objects(scene.settings), list[str]()
    before = {key for topic in scene.settings.topics for key in objects.listed(topic)}
    scene.feed(600)
    scene.covered()
    there = {key for topic in scene.settings.topics for key in objects.listed(topic)}
    made = {key: objects.get(key) for key in sorted(there - before)}
    assert made, "nothing was archived"
    try:
        yield objects, made, added
    finally:
        for key in added:
            objects.delete(key)
        for key, data in made.items():
            objects.put(key, data)


@fault("objects.doubled")
def objects_doubled(scene: Scene) -> None:
    """Every object comes a second time under a lower name, as Secor leaves it after a crash, before it is ingested."""
    with fresh_objects(scene) as (objects, made, added):
        taken = {key for topic in scene.settings.topics for key in objects.listed(topic)}
        for key, data in made.items():
            start = start_of("/" + key) or 0
            other = key.replace(f"{start:020d}", f"{max(0, start - 1):020d}")
            if other not in taken:
                added.append(other)
                objects.put(other, data)
        assert added, "no object could be doubled"
        scene.report.told(f"{len(added)} objects")
        scene.report.acted()
        scene.batch()
        scene.check(STORED_TWICE)
    scene.check()


def moved_away(objects: Objects, made: dict[str, bytes], keys: list[str]) -> None:
    """As alarms ask: damaged objects go, and nobody puts them back."""
    for key in keys:
        objects.delete(key)
        del made[key]


@fault("objects.truncated")
def objects_truncated(scene: Scene) -> None:
    """Objects are cut in half before they are ingested: ingest says so, and stores beside them what they give and what
    Kafka has of the rest; moved away, they take nothing with them."""
    with fresh_objects(scene) as (objects, made, _):
        for key, data in made.items():
            objects.put(key, data[: len(data) // 2])
        report = ingest(scene.spark, scene.settings)
        assert len(report.alarms) >= len(made), report
        scene.report.told(f"{len(report.alarms)} alarms")
        scene.check(STORED_TWICE)
        moved_away(objects, made, list(made))
    scene.report.acted()
    scene.batch()
    scene.check()


@fault("objects.rotten")
def objects_rotten(scene: Scene) -> None:
    """Bytes of objects change on the disk beneath the object store, before they are ingested: what the store no longer
    gives is taken from Kafka, and stored beside them."""
    with fresh_objects(scene) as (objects, made, _):
        rotten = list(made)[::2]
        for key in rotten:
            (path,) = (data(scene.settings, "minio") / objects.bucket / key).glob("**/xl.meta")
            content = bytearray(path.read_bytes())
            content[-40] ^= 0xFF
            path.write_bytes(content)
        scene.report.told(f"{len(rotten)} of {len(made)} objects")
        scene.report.acted()
        report = ingest(scene.spark, scene.settings)
        assert len(report.alarms) >= len(rotten), report
        assert not report.lost, "Kafka had it"
        scene.check()
        moved_away(objects, made, rotten)
    scene.batch()
    scene.check()


@fault("objects.deleted")
def objects_deleted(scene: Scene) -> None:
    """Half of the objects vanish before they are ingested: ingest takes what they held from Kafka, and stores it
    anew."""
    with fresh_objects(scene) as (objects, made, _):
        deleted = list(made)[::2]
        moved_away(objects, made, deleted)
        scene.report.told(f"{len(deleted)} of {len(deleted) + len(made)} objects")
        scene.feed(300)  # what comes later shows the gap
        scene.covered()
        scene.report.acted()
        scene.batch()
    scene.check()
