"""Real processes are killed with SIGKILL at the moments that are dangerous; afterwards every answer is exact.

The tests share one platform and go on where the one before left off, so what one of them breaks the next one meets.
"""

import json
import shutil
import signal

import psutil
import pytest
from _pytest.mark.structures import ParameterSet

from changelog.archive.secor import read_object
from changelog.archive.store import ArchiveStore
from changelog.topics import end_offsets
from infra import supervise
from infra.home import Ports, port_is_free
from runtime import ops
from runtime.settings import Settings
from tests.faults import report
from tests.faults.report import kill
from tests.services import (
    alerts_sent,
    assert_exact,
    expected,
    feed,
    query,
    read_log,
    run,
    served,
    shop,
    start,
    status,
    until,
)
from views.registry import view_names

pytestmark = pytest.mark.faults

KILLED = -signal.SIGKILL


def run_until_killed(module: str, point: str, *arguments: str) -> None:
    """Run a program in the foreground until it dies at a named point."""
    process = start(*arguments, module=module, ANABRANCH_KILL_AT=point)
    out, err = process.communicate(timeout=240)
    assert process.returncode == KILLED, f"it should have died at {point}: {process.returncode}\n{out}\n{err[-3000:]}"
    report.killed()


def stop(settings: Settings, name: str) -> None:
    """Stop a supervised service."""
    supervise.proxy(settings).stopProcess(name, True)


def go_on(settings: Settings, name: str) -> None:
    """Let the supervisor run it again."""
    supervise.start_service(settings, name)
    until(lambda: status()[name]["state"] == "running", 60, f"{name} runs")


AROUND = {"speed.before-commit": 21, "speed.after-commit": 22, "speed.after-alerts": 27}


def points(first: str, *others: str) -> list[ParameterSet]:
    """Named kill points of one test: the first is the most telling, the others are for those who have time."""
    return [pytest.param(first), *(pytest.param(other, marks=pytest.mark.slow) for other in others)]


@pytest.mark.parametrize("point", points("speed.after-alerts", "speed.after-commit", "speed.before-commit"))
def test_speed_dies_around_its_commit(platform: Settings, point: str) -> None:
    """Between Iceberg's commit and Spark's the epoch is there and not noted: its replay replaces it. Its alerts are
    sent between the two, each once."""
    stop(platform, "speed")
    feed(platform, shop(AROUND[point], 800))
    run_until_killed("speed.app", point)
    go_on(platform, "speed")
    assert_exact(platform)
    doubled = query(
        platform,
        "SELECT count(*) FROM (SELECT 1 FROM ops.epochs GROUP BY generation, epoch, topic, kafka_partition "
        "HAVING count(*) > 1)",
    )
    assert doubled == [[0]]
    assert_alerts_sent_once(platform)


def assert_alerts_sent_once(settings: Settings) -> None:
    """The alerts' topics hold exactly what the views say, each once. The views have them first: they are sent after
    the commit of their epoch."""
    rows = query(settings, "SELECT pattern, guest_ref, source_partition, source_offset FROM serving.alerts")
    assert len(rows) > 0, "nothing to see"
    until(lambda: len(alerts_sent(settings)) >= len(rows), 60, "the alerts are sent")
    assert sorted(alerts_sent(settings)) == sorted(map(tuple, rows))


@pytest.mark.slow
def test_speed_dies_while_it_starts_again_and_while_it_works(platform: Settings) -> None:
    """The supervised driver, killed with its JVM left to notice, three times, at whatever it is doing."""
    killed = {None}
    for seed in (23, 24, 25):
        feed(platform, shop(seed, 400))
        pid = status()["speed"]["pid"]
        kill(pid)
        killed.add(pid)
        until(lambda: status()["speed"]["pid"] not in killed, 60, "the supervisor starts it again")
    assert_exact(platform)


@pytest.mark.slow
def test_a_lost_store_of_identities_is_made_anew_from_the_log(platform: Settings) -> None:
    """Everything is sent again after the store that would know it is gone."""
    records = shop(26, 400)
    feed(platform, records)
    assert_exact(platform)
    stop(platform, "speed")
    (store,) = (platform.home / "identities").glob("*/*")
    shutil.rmtree(store)
    feed(platform, records)
    go_on(platform, "speed")
    assert_exact(platform)
    assert store.exists()


@pytest.mark.slow
def test_lost_histories_are_filled_from_the_archive_in_a_new_generation(platform: Settings) -> None:
    """What they know cannot be told from the log's end; so nothing is folded without it, and nothing is sent twice."""
    run("batch")
    feed(platform, shop(28, 400))
    assert_exact(platform)
    before = last_generation(platform)
    stop(platform, "speed")
    (store,) = (platform.home / "histories").glob("*/*/0")
    shutil.rmtree(store)
    feed(platform, shop(29, 400))
    go_on(platform, "speed")
    until(lambda: last_generation(platform) > before, 90, "the new generation has an epoch")
    run("batch")  # until then the views stand on the generation that was lost, exact up to where it stopped
    assert_exact(platform)
    assert_alerts_sent_once(platform)


def last_generation(settings: Settings) -> int:
    """The newest generation that has an epoch."""
    return int(query(settings, "SELECT max(generation) FROM ops.epochs")[0][0])


@pytest.mark.parametrize(
    "point", points("archiver.before-commit", "archiver.before-upload#2", "archiver.before-commit#3")
)
def test_the_archiver_dies_between_upload_and_offset_commit(platform: Settings, point: str) -> None:
    """What is stored and not committed is consumed again, found in the store, and stored no second time."""
    stop(platform, "archiver")
    feed(platform, shop(30 + len(point), 600))
    run_until_killed("changelog.archive.archiver", point)
    go_on(platform, "archiver")
    until(lambda: archived_ends(platform) == end_offsets(platform), 90, "the archiver has caught up")
    store, seen = ArchiveStore(platform.s3), set()
    for topic in platform.topics:
        for item in store.list_objects(topic):
            for record in read_object(store.get(item.key), item.key):
                place = (topic, item.partition, record.offset)
                assert place not in seen, "an offset is stored twice"
                seen.add(place)
    assert seen == {(record.topic, record.partition, record.offset) for record in read_log(platform)}


def archived_ends(settings: Settings) -> dict[str, dict[int, int]]:
    """One past the highest offset in the store, of every topic-partition."""
    ends = {topic: dict.fromkeys(range(settings.kafka.partitions), 0) for topic in settings.topics}
    store = ArchiveStore(settings.s3)
    for topic in settings.topics:
        for item in store.list_objects(topic):
            last = max(record.offset for record in read_object(store.get(item.key), item.key))
            ends[topic][item.partition] = max(ends[topic][item.partition], last + 1)
    return ends


@pytest.mark.parametrize("point", points("ingest.after-commit", "ingest.before-commit", "ingest.after-commit#2"))
def test_ingest_dies_before_and_between_its_commits(platform: Settings, point: str) -> None:
    feed(platform, shop(50 + len(point), 300))
    run_until_killed("batch.run", point, "--full")
    assert_exact(platform)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["build.between-views", "build.before-write"])
def test_build_dies_and_what_it_left_counts_for_nothing(platform: Settings, point: str) -> None:
    run_until_killed("batch.run", point, "--run-id", "interrupted")
    assert served(platform).difference(expected(platform)) == ""


@pytest.mark.slow
def test_the_run_that_died_is_run_again_under_its_name(platform: Settings) -> None:
    run("batch", "--run-id", "interrupted")
    assert_exact(platform)
    assert query(platform, "SELECT DISTINCT run_id FROM serving.boundary") == [["interrupted"]]
    for view in view_names():
        branches = query(platform, f"SELECT name FROM lake.batch.\"{view}$refs\" WHERE name LIKE 'branch%'")
        assert branches == [], "a branch was left behind"


@pytest.mark.slow
def test_two_batch_runs_at_once_and_one_dies_half_way(platform: Settings) -> None:
    """Of two ingests at once neither doubles a row, whoever comes first and whoever dies."""
    feed(platform, shop(61, 600))
    both = [start("--full", module="batch.run"), start(module="batch.run", ANABRANCH_KILL_AT="ingest.after-commit#3")]
    outcomes = [process.communicate(timeout=300) for process in both]
    assert both[0].returncode == 0, outcomes[0][1][-3000:]
    assert both[1].returncode in (0, KILLED), outcomes[1][1][-3000:]
    for entity in ("guest", "session", "order", "event"):
        offsets = f'SELECT kafka_partition, kafka_offset FROM lake.archive."{entity}"'
        rows = query(platform, f"SELECT count(*), count(DISTINCT (kafka_partition, kafka_offset)) FROM ({offsets})")
        assert rows[0][0] == rows[0][1]
    run("publish")
    assert_exact(platform)


@pytest.mark.parametrize("point", points("publish.between-views#2", "publish.recorded"))
def test_a_publication_that_dies_is_finished_by_whoever_comes_next(platform: Settings, point: str) -> None:
    feed(platform, shop(70 + len(point), 300))
    run("batch", "--no-publish")
    run_until_killed("infra.cli", point, "publish")
    assert_exact(platform)
    with ops.connect(platform) as connection:
        assert connection.execute("SELECT 1 FROM publications WHERE state = 'started'").fetchone()
    assert "served already" in run("publish")
    assert len(query(platform, "SELECT DISTINCT publication FROM serving.boundary")) == 1
    assert_exact(platform)


@pytest.mark.slow
def test_a_killed_supervisor_leaves_nothing_that_up_does_not_mend(platform: Settings) -> None:
    supervisor = psutil.Process(int((platform.home / "run" / "supervisord.pid").read_text()))
    kill(supervisor.pid)
    supervisor.wait(20)
    run("up")
    assert {service["state"] for service in status().values()} == {"running"}
    assert_exact(platform)


@pytest.mark.slow
def test_down_leaves_no_process_and_up_goes_on(platform: Settings) -> None:
    before = served(platform)
    run("down")
    run("down")
    assert supervise.leftovers(platform) == []
    assert all(port_is_free(port) for port in Ports(platform.port_base).all())
    run("up")
    assert served(platform).difference(before) == ""
    feed(platform, shop(90, 300))
    assert_exact(platform)


@pytest.mark.slow
def test_verify_is_exact_after_all_of_it(platform: Settings) -> None:
    run("batch", "--full")
    report = json.loads(run("verify", "--json"))
    assert report["differences"] == []
