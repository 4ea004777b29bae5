"""The speed layer: its driver, its workers, its checkpoint, its generations."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from batch import maintenance
from runtime.service import EXIT_CONFIGURATION
from tests.faults.catalogue import fault
from tests.faults.disk import small_disk
from tests.faults.report import kill, killed
from tests.faults.scene import Scene
from tests.faults.test_kills import assert_alerts_sent_once
from tests.services import age_generations, query, run, until

DOUBLED_EPOCHS = (
    "SELECT count(*) FROM (SELECT 1 FROM ops.epochs GROUP BY generation, epoch, topic, kafka_partition "
    "HAVING count(*) > 1)"
)


def maintain_without_mercy(scene: Scene) -> None:
    """Maintenance that keeps two publications, and no snapshot that nothing pins, not even for queries that run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "SPEED_SNAPSHOTS", timedelta(0))
        patch.setattr(maintenance, "OTHER_SNAPSHOTS", timedelta(0))
        settings = scene.settings.model_copy(deep=True)
        settings.batch.keep_publications = 2
        report = maintenance.maintain(scene.spark, settings)
    assert report.failed == [], report.failed
    scene.report.told(f"{report.expired_files} files expired")


@fault("speed.killed-around-compaction")
def killed_around_compaction(scene: Scene) -> None:
    """The driver dies before and after it has put files of closed epochs together, before Spark notes the epoch."""
    scene.stop("speed")
    with scene.load(rate=25):
        for point in ("compaction.before-commit", "compaction.after-commit"):
            scene.run_until_killed("speed.app", point)
        scene.go_on("speed")
    scene.check()
    assert query(scene.settings, DOUBLED_EPOCHS) == [[0]]


@fault("speed.killed-between-histories-and-commit")
def killed_between_histories_and_commit(scene: Scene) -> None:
    """A worker dies when the histories of guests have noted an epoch that is not committed: three times, at its first,
    second and third passage; the epoch finds in them what it found before."""
    scene.stop("speed")
    with scene.load(rate=25):
        for number in (1, 2, 3):
            marker = scene.settings.home / f"killed-at-histories.noted#{number}"
            marker.unlink(missing_ok=True)
            driver = scene.spawn(module="speed.app", ANABRANCH_KILL_AT=f"histories.noted#{number}")
            until(marker.exists, 120, "a worker dies")
            killed()
            assert driver.wait(120) not in (0, EXIT_CONFIGURATION), "the driver has to end, and may be started again"
        scene.go_on("speed")
    scene.check()
    assert query(scene.settings, DOUBLED_EPOCHS) == [[0]]
    assert_alerts_sent_once(scene.settings)


@fault("speed.killed-before-alerts-are-committed")
def killed_before_alerts_are_committed(scene: Scene) -> None:
    """The driver dies with alerts in a transaction that is open: they are sent again, and are there once."""
    scene.stop("speed")
    scene.feed(800)
    scene.run_until_killed("speed.app", "alerts.before-commit")
    scene.go_on("speed")
    scene.check()
    assert_alerts_sent_once(scene.settings)


@fault("speed.replayed-after-maintenance", refusable=True)
def replayed_after_maintenance(scene: Scene) -> None:
    """The driver dies between Iceberg's commit and Spark's; maintenance expires every snapshot that nothing pins; then
    the epoch is replayed."""
    scene.batch()
    scene.stop("speed")
    scene.feed(600)
    for point in ("speed.before-commit", "speed.after-commit"):
        scene.run_until_killed("speed.app", point)
        maintain_without_mercy(scene)
    scene.go_on("speed")
    scene.check()
    assert query(scene.settings, DOUBLED_EPOCHS) == [[0]]


@fault("speed.killed-at-random")
def killed_at_random(scene: Scene) -> None:
    """The driver is killed eight times while records come, at whatever it is doing: starting, folding, committing."""
    with scene.load(rate=50):
        for number in range(8):
            scene.kill_at_work("speed", 6) if number % 2 else scene.kill("speed")
            scene.somewhen(9)
    scene.check()
    assert query(scene.settings, DOUBLED_EPOCHS) == [[0]]


@fault("speed.workers-killed")
def workers_killed(scene: Scene) -> None:
    """Python workers and JVM of the driver are killed under it, five times, while records come."""
    with scene.load(rate=60):
        for _ in range(5):
            until(lambda: len(family(scene)) > 1, 90, "the driver has children")
            kill(scene.random.choice(family(scene)[1:]).pid)
            scene.somewhen(6)
    scene.check()


def family(scene: Scene) -> list[psutil.Process]:
    """The driver and everything that it started."""
    pid = scene.pid("speed")
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if pid else []
    except psutil.NoSuchProcess:
        return []


def newest(directory: Path) -> Path:
    """The newest file of one of Spark's logs."""
    return max(directory.glob("[0-9]*"), key=lambda path: int(path.name))


def lose_all(checkpoint: Path) -> None:
    for path in sorted(checkpoint.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    checkpoint.rmdir()


def half_offsets(checkpoint: Path) -> None:
    path = newest(checkpoint / "offsets")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_commits(checkpoint: Path) -> None:
    newest(checkpoint / "commits").write_bytes(b"")


def damaged(scene: Scene, damage: Callable[[Path], None]) -> None:
    """The speed layer is stopped, its checkpoint is damaged, records come, and it comes back without an operator: the
    next batch run finds it."""
    age_generations(scene.settings)
    scene.batch()
    scene.feed(300)
    scene.covered()
    scene.stop("speed")
    damage(scene.checkpoint())
    scene.feed(300)
    comes_back(scene)
    scene.check()


def comes_back(scene: Scene) -> None:
    """Start the speed layer and wait until it folds again, whether in its old life or in a new one; a new one is
    switched to by a batch run. Where it needs an operator he comes, for the cases after this one; this one fails."""
    before = scene.newest_generation()
    try:
        scene.go_on("speed")
        scene.batch()
        scene.covered(120)
    except Exception:
        begin_anew(scene)
        raise
    if scene.newest_generation() > before:
        scene.report.told("by a new generation")


def begin_anew(scene: Scene) -> None:
    """A new generation is served."""
    before = scene.newest_generation()
    run("generation", "new")
    until(lambda: scene.newest_generation() > before, 120, "the new generation has an epoch")
    scene.batch()
    assert query(scene.settings, "SELECT DISTINCT generation FROM serving.boundary") == [[scene.newest_generation()]]


@fault("checkpoint.lost", seconds=900)
def checkpoint_lost(scene: Scene) -> None:
    """The speed layer's checkpoint is gone."""
    damaged(scene, lose_all)


@fault("checkpoint.offsets-cut", seconds=900)
def checkpoint_offsets_cut(scene: Scene) -> None:
    """The newest file of the checkpoint's offsets is cut in half."""
    damaged(scene, half_offsets)


@fault("checkpoint.commits-empty", seconds=900)
def checkpoint_commits_empty(scene: Scene) -> None:
    """The newest file of the checkpoint's commits is empty."""
    damaged(scene, empty_commits)


@fault("checkpoint.disk-full", alone=True, seconds=900)
def checkpoint_disk_full(scene: Scene) -> None:
    """The disk of the checkpoint is full while records come, and has room again half a minute later."""
    age_generations(scene.settings)
    scene.batch()
    scene.stop("speed")
    with small_disk(scene.settings.home / "checkpoints", room=16 << 20, memory=True) as disk:
        try:
            scene.go_on("speed")
            with scene.load(rate=50):
                disk.fill()
                scene.pause(30)
                disk.free()
                scene.report.acted()
            comes_back(scene)
        finally:
            scene.stop("speed")
    scene.go_on("speed")
    scene.check()


@fault("generation.new-while-records-come")
def generation_while_records_come(scene: Scene) -> None:
    """A new generation begins while records come, its driver is killed, and a batch run switches to it."""
    scene.batch()
    before = scene.newest_generation()
    with scene.load(rate=60):
        run("generation", "new")
        until(lambda: scene.newest_generation() > before, 120, "the new generation has an epoch")
        scene.kill("speed")
        scene.batch()
    scene.check()
    assert query(scene.settings, "SELECT DISTINCT generation FROM serving.boundary") == [[scene.newest_generation()]]
