"""The service derive is killed, alone and again and again; each version and each patch is there once, in order."""

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from changelog.derive import SOURCES, state
from changelog.derived import GROUP
from changelog.producer import ChangelogProducer, Record
from changelog.topics import committed_offsets, delete_group
from runtime.settings import Settings
from tests.faults.report import kill
from tests.faults.test_kills import go_on, points, run_until_killed, stop
from tests.services import assert_derived, await_derived, busy, feed, shop, start, status, until

pytestmark = pytest.mark.faults

POINTS = ("derive.before-commit", "derive.judged", "derive.produced", "derive.after-commit")


@pytest.mark.parametrize("point", points(*POINTS))
def test_derive_dies_around_its_transaction(platform: Settings, point: str) -> None:
    """Judged and not written, written and not committed, committed and not noted: what is killed is done again, or was
    done."""
    stop(platform, "derive")
    feed(platform, shop(600 + POINTS.index(point), 600))
    run_until_killed("changelog.derive", point)
    go_on(platform, "derive")
    assert_derived(platform)


@contextmanager
def arriving(settings: Settings, records: list[Record], rate: float) -> Iterator[None]:
    """Records that are appended meanwhile; all are acknowledged afterwards."""

    def send() -> None:
        with ChangelogProducer(settings, rate) as producer:
            for record in records:
                producer.send(record)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.slow
def test_derive_dies_again_and_again_while_records_arrive(platform: Settings) -> None:
    """The supervised service, at whatever it is doing: starting, judging, producing, committing."""
    moments = random.Random(7)  # where the kills fall differs anyway
    with arriving(platform, shop(610, 4000), rate=400):
        killed = {None}
        for _ in range(6):
            until(lambda: status()["derive"]["pid"] not in killed, 60, "the supervisor starts it again")
            pid = status()["derive"]["pid"]
            threading.Event().wait(moments.uniform(0, 2.5))  # a random moment is what is tested
            kill(pid)
            killed.add(pid)
    assert_derived(platform)


@pytest.mark.slow
def test_offsets_that_kafka_forgot_are_found_in_what_was_derived(platform: Settings) -> None:
    """Nothing is derived twice, although copies and bad records at the end left nothing to go by."""
    await_derived(platform)
    stop(platform, "derive")
    feed(platform, shop(620, 300))
    go_on(platform, "derive")
    await_derived(platform)
    feed(platform, shop(620, 300)[-50:])
    await_derived(platform)
    stop(platform, "derive")
    delete_group(platform, GROUP)
    assert committed_offsets(platform, GROUP, SOURCES) == {}
    feed(platform, shop(621, 300))
    go_on(platform, "derive")
    assert_derived(platform)


@pytest.mark.slow
def test_lost_identities_are_made_anew_from_the_log(platform: Settings) -> None:
    records = shop(630, 400)
    feed(platform, records)
    await_derived(platform)
    stop(platform, "derive")
    shutil.rmtree(state(platform))
    feed(platform, records)
    go_on(platform, "derive")
    assert_derived(platform)
    assert state(platform).exists()


@pytest.mark.slow
def test_of_two_that_run_at_once_one_writes(platform: Settings) -> None:
    """A second one fences the first, whose supervisor starts it again, which fences the second."""
    first = status()["derive"]["pid"]
    second = start(module="changelog.derive")
    try:
        with busy(platform, 640):  # an instance without any work does not learn that it is fenced
            until(lambda: status()["derive"]["pid"] not in (None, first), 60, "the first is fenced, and started again")
            until(lambda: second.poll() is not None, 60, "the second is fenced")
    finally:
        second.kill()
        _, err = second.communicate()
    assert second.returncode == 1
    assert "fenced" in err.lower()
    assert_derived(platform)
