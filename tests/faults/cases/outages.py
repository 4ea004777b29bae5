"""What everything stands on: object store, databases, query engine, disks, the machine."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from batch.plan import Plan
from infra import supervise
from infra.services import data
from runtime.service import EXIT_CONFIGURATION
from runtime.settings import Settings
from tests.faults.cases.speed import DOUBLED_EPOCHS, maintain_without_mercy
from tests.faults.catalogue import fault
from tests.faults.disk import small_disk
from tests.faults.proxy import Proxy
from tests.faults.report import kill
from tests.faults.scene import OURS, SERVICES, Scene
from tests.services import query, run, until

UPDATED_ONE = b"UPDATE 1\0"
"""What PostgreSQL answers when a table of the catalog has got its new metadata: the commit is done."""


@fault("minio.frozen-for-a-minute", refusable=True, seconds=900)
def minio_frozen(scene: Scene) -> None:
    """The object store takes connections and answers nothing for a minute, while records come."""
    with scene.load(rate=30):
        scene.pause(5)
        with scene.frozen("minio"):
            scene.pause(60)
    scene.check()


@fault("minio.refuses", refusable=True, seconds=900)
def minio_refuses(scene: Scene) -> None:
    """The object store is not there for half a minute: connections are refused, while records come."""
    with scene.load(rate=40):
        scene.stop("minio")
        scene.pause(30)
        scene.go_on("minio")
    scene.check()


@fault("minio.slow", seconds=900)
def minio_slow(scene: Scene) -> None:
    """The object store works a tenth of the time for half a minute, while records come and a batch run builds."""
    with scene.load(rate=30):
        batch = scene.spawn(module="batch.run")
        pid = scene.pid("minio")
        assert pid is not None
        process = psutil.Process(pid)
        try:
            for _ in range(40):
                process.suspend()
                scene.pause(0.7)
                process.resume()
                scene.pause(0.08)
        finally:
            process.resume()
        scene.report.acted()
        assert batch.wait(300) == 0, "the batch run failed: see its log"
    scene.check()


@fault("minio.killed", refusable=True, seconds=900)
def minio_killed(scene: Scene) -> None:
    """The object store is killed six times while records come."""
    with scene.load(rate=40):
        for _ in range(6):
            scene.kill("minio")
            scene.somewhen(5)
    scene.check()


@fault("postgres.killed", refusable=True, seconds=900)
def postgres_killed(scene: Scene) -> None:
    """The catalog's database is killed five times while the speed layer commits to it, then restarted while a batch run
    builds."""
    with scene.load(rate=40):
        for _ in range(5):
            scene.kill("postgres")
            scene.somewhen(7)
    scene.covered()
    building = scene.spawn("--full", module="batch.run")
    scene.pause(14)
    scene.kill("postgres")
    building.wait(300)
    scene.report.told(f"the batch run ended with {building.returncode}")
    run("batch", "--full")
    scene.check()
    assert query(scene.settings, DOUBLED_EPOCHS) == [[0]]


def through(proxy: Proxy) -> dict[str, str]:
    """The environment of a process that sees the catalog's database through the proxy."""
    return {"ANABRANCH_CATALOG__PORT": str(proxy.port)}


@fault("catalog.reply-lost-to-speed", refusable=True, seconds=900)
def catalog_reply_lost_to_speed(scene: Scene) -> None:
    """Eight times the catalog takes a commit of the speed layer's, of an epoch or of files put together, and the
    answer never arrives; afterwards maintenance expires every snapshot."""
    scene.batch()
    scene.stop("speed")
    with Proxy(scene.settings.catalog.port) as proxy:
        with scene.load(rate=30):
            driver = scene.spawn(module="speed.app", **through(proxy))
            for number in range(8):
                proxy.lose(UPDATED_ONE, nth=scene.random.randint(1, 2))
                while proxy.lost <= number:
                    until(lambda: proxy.lost > number or driver.poll() is not None, 120, "a reply is lost")  # noqa: B023
                    if driver.poll() is not None:  # it may end of an error that it does not know, and begins again
                        driver = scene.spawn(module="speed.app", **through(proxy))
                scene.report.acted()
        end(driver)
    assert proxy.lost == 8, f"{proxy.lost} replies were lost"
    scene.report.told(f"{proxy.lost} replies lost")
    scene.go_on("speed")
    scene.check()
    maintain_without_mercy(scene)
    scene.check()
    assert query(scene.settings, DOUBLED_EPOCHS) == [[0]]


def end(process: "subprocess.Popen[str]") -> None:
    """Ask a process to end, and wait."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(90)


@fault("catalog.reply-lost-to-batch", refusable=True, seconds=900)
def catalog_reply_lost_to_batch(scene: Scene) -> None:
    """The catalog takes a commit of ingest's or of build's and the answer never arrives: an early one, a middle
    one, a late one; the run is started again under its name."""
    for nth in (1, 3, 8, 20):
        scene.feed(200)
        scene.covered()
        name = f"unheard_{scene.seed}_{scene.turn}_{nth}"
        with Proxy(scene.settings.catalog.port) as proxy:
            proxy.lose(UPDATED_ONE, nth=nth)
            process = scene.spawn("--run-id", name, module="batch.run", **through(proxy))
            process.wait(300)
        scene.report.acted()
        assert proxy.lost == 1, f"commit {nth} was never made"
        scene.report.told(f"commit {nth}: exit status {process.returncode}")
        scene.batch(Plan(run_id=name))
        scene.check()
    maintain_without_mercy(scene)
    scene.batch(Plan(full=True))
    scene.check()


@fault("trino.killed-during-queries", refusable=True, seconds=900)
def trino_killed(scene: Scene) -> None:
    """The query engine is killed twice while it is asked and records come, and once in the middle of a publication."""
    with scene.load(rate=40):
        for _ in range(2):
            scene.kill("trino")
            scene.go_on("trino")
            scene.somewhen(4)
    scene.batch(Plan(run_id=f"unseen_{scene.seed}_{scene.turn}"), serve=False)
    publishing = scene.spawn("publish")
    scene.pause(2.5)
    scene.kill("trino")
    publishing.wait(200)
    scene.report.told(f"the publication ended with {publishing.returncode}")
    scene.go_on("trino")
    run("publish")
    scene.check()


@fault("disk.full-under-objects", refusable=True, alone=True, seconds=900)
def disk_full_under_objects(scene: Scene) -> None:
    """The disk of the object store is full for half a minute while records come."""
    on_a_small_disk(scene, "minio", 40 << 20)


@fault("disk.full-under-kafka", refusable=True, alone=True, seconds=900)
def disk_full_under_kafka(scene: Scene) -> None:
    """The disk of Kafka is full for half a minute while records come."""
    on_a_small_disk(scene, "kafka", 40 << 20)


@fault("disk.full-under-databases", refusable=True, alone=True, seconds=900)
def disk_full_under_databases(scene: Scene) -> None:
    """The disk of PostgreSQL (catalog and operations) is full for half a minute while records come."""
    on_a_small_disk(scene, "postgres", 48 << 20)


def on_a_small_disk(scene: Scene, name: str, room: int) -> None:
    directory: Path = data(scene.settings, name)
    scene.stop(name)
    with small_disk(directory, room, memory=False) as disk:
        try:
            scene.go_on(name)
            scene.covered()
            with scene.load(rate=30):
                disk.fill()
                scene.pause(30)
                disk.free()
                scene.report.acted()
                scene.go_on(name)
            scene.covered()
        finally:
            scene.stop(name)
    scene.go_on(name)
    scene.check()


@fault("everything.killed-at-once", quick=True, refusable=True, seconds=900)
def everything_killed(scene: Scene) -> None:
    """Every service is killed at one moment while records come, and the supervisor starts all again at once; twice."""
    with scene.load(rate=30):
        for _ in range(2):
            for name in scene.random.sample(SERVICES, len(SERVICES)):
                kill(scene.pid(name))
            scene.somewhen(3)
            for name in SERVICES:
                until(lambda: scene.pid(name) is not None, 60, f"{name} is started again")  # noqa: B023
            scene.somewhen(10)
    comes_up(scene)
    scene.check()
    scene.batch()
    scene.check()


@fault("machine.power-cut", refusable=True, seconds=900)
def power_cut(scene: Scene) -> None:
    """Supervisor and every process that it started are killed at one moment while records come; they are started in
    random order."""
    settings: Settings = scene.settings
    with scene.load(rate=40):
        scene.pause(5)
        supervisor = int((settings.home / "run" / "supervisord.pid").read_text())
        everybody, pids = supervise.leftovers(settings), [scene.pid(name) for name in SERVICES]
        for pid in (supervisor, *pids):
            kill(pid)
        for process in everybody:  # and what they had started
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everybody, timeout=20)
        supervise.start(settings)
        for name in scene.random.sample(SERVICES, len(SERVICES)):
            supervise.start_service(settings, name)
            scene.somewhen(3)
    comes_up(scene)
    scene.check()
    scene.feed(200)
    scene.batch()
    scene.check()


def comes_up(scene: Scene) -> None:
    """Wait until everything of ours works, by itself. For the cases after one in which a service has given up for good,
    which fails, it is started again."""
    try:
        scene.covered()
    except Exception:
        run("up")
        raise
    finally:
        states = supervise.states(scene.settings)
    assert [name for name in OURS if states[name].get("exitstatus") == EXIT_CONFIGURATION] == []
