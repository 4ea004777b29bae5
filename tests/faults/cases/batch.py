"""The batch layer and publication: killed, twice at once, raced, rolled back."""

import json
import threading

from batch.plan import Plan
from tests.faults.cases.speed import maintain_without_mercy
from tests.faults.catalogue import fault
from tests.faults.places import rows_of_view
from tests.faults.report import kill_tree
from tests.faults.scene import Scene, finish
from tests.services import query, run


@fault("batch.killed-at-random")
def batch_killed_at_random(scene: Scene) -> None:
    """Full batch runs are killed, driver and JVM, at whatever they are doing, five times; then one comes through."""
    scene.feed(500)
    for number in range(5):
        process = scene.spawn("--full", module="batch.run")
        scene.pause(8 + 5 * number)  # a driver takes ten seconds to start, and some thirty for all
        assert process.poll() is None, "the run was over before it was killed"
        kill_tree(process.pid)
        process.wait()
    scene.check()
    run("batch", "--full")
    scene.check()


@fault("maintenance.killed")
def maintenance_killed(scene: Scene) -> None:
    """Maintenance is killed after it has retired what is old and before it expires anything, while records come; run
    again it ends, and what is served stays right."""
    with scene.load(rate=30):
        for point in ("maintenance.retired", "maintenance.before-expiry"):
            scene.run_until_killed("batch.maintenance", point)
        maintain_without_mercy(scene)
    scene.check()
    scene.batch()
    scene.check()


@fault("batch.overlapping-under-one-name")
def batch_overlapping(scene: Scene) -> None:
    """Two batch runs of one name work at once while records come, and one is killed; then it is run once more."""
    with scene.load(rate=40):
        both = [scene.spawn("--run-id", "overlapping", module="batch.run") for _ in range(2)]
        scene.pause(15)
        scene.somewhen(8)
        assert [one.poll() for one in both] == [None, None], "both should be at work"
        kill_tree(both[0].pid)
        finish(both)
        run("batch", "--run-id", "overlapping")
    scene.check()


@fault("publication.raced-by-queries", alone=True)
def publication_raced_by_queries(scene: Scene) -> None:
    """Publications and rollbacks follow each other as fast as they can while two views are asked all the time: every
    answer is the one of before or after, which are the same."""
    scene.batch()
    scene.feed(400)
    scene.batch()
    scene.covered()
    must = {view: sorted(rows_of_view(scene.settings, view), key=str) for view in ("revenue", "order_latest")}
    over, wrong, asked = threading.Event(), list[str](), [0]

    def ask() -> None:
        while not over.is_set():
            for view, rows in must.items():
                asked[0] += 1
                if sorted(rows_of_view(scene.settings, view), key=str) != rows:
                    wrong.append(view)

    readers = [threading.Thread(target=ask) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(4):
            run("rollback")
            run("release")
            run("publish")
    finally:
        over.set()
        for reader in readers:
            reader.join()
    scene.report.told(f"{asked[0]} whole reads across 8 replacements of every view")
    assert asked[0] > 10
    assert wrong == []
    scene.check()


@fault("publication.raced-by-publication")
def publication_raced_by_publication(scene: Scene) -> None:
    """Four publications of two runs are started at once, and two of them killed between two views."""
    runs = [f"raced_{scene.seed}_{scene.turn}_{number}" for number in range(2)]
    for name in runs:
        scene.feed(200)
        scene.batch(Plan(run_id=name), serve=False)
    for marker in scene.settings.home.glob("killed-at-publish.*"):
        marker.unlink()
    points = ("publish.between-views#2", "publish.between-views#5")
    racing = [
        *(scene.spawn("publish", name, ANABRANCH_KILL_AT=point) for name, point in zip(runs, points, strict=True)),
        *(scene.spawn("publish", name) for name in runs),
    ]
    statuses = finish(racing)
    assert -9 in statuses[:2], f"none was killed: {statuses}"
    scene.report.kills += statuses.count(-9)
    scene.report.acted()
    run("publish")
    served = query(scene.settings, "SELECT count(DISTINCT publication) FROM serving.boundary")
    assert served == [[1]]
    scene.check()


@fault("rollback.batch-rollback", alone=True)
def rollback_batch_rollback(scene: Scene) -> None:
    """Rollback, a batch run while publication is held, a second rollback further back, release, and publication."""
    for _ in range(3):
        scene.feed(150)
        scene.batch()
    before = served_by(scene)
    run("rollback")
    scene.check()
    first = served_by(scene)
    assert first < before
    scene.feed(150)
    run("batch", status=1)  # it builds, and what it built is not published
    assert served_by(scene) == first, "a run was published although publication is held"
    run("rollback")
    assert served_by(scene) < first
    scene.check()
    run("release")
    run("publish")
    assert served_by(scene) > before
    scene.check()


def served_by(scene: Scene) -> int:
    """The publication whose pair is served: of a rollback the one that it restored."""
    served = {row["publication"] for row in json.loads(run("publications", "--json")) if row["served"]}
    assert len(served) == 1, served
    return int(served.pop())
