"""What a killed service leaves behind is found by whose it is, and ended."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra import supervise
from infra.home import write_private
from infra.supervise import end_leftovers, leftovers, session_path
from runtime.settings import Settings
from runtime.version import ROOT

pytestmark = pytest.mark.unit

Start = Callable[[str], psutil.Process]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts a process of a service of this home, in a session of its own."""
    started = []

    def begin(service: str) -> psutil.Process:
        process = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
            env={"ANABRANCH_HOME": str(home), "ANABRANCH_SERVICE": service}, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # it has its own environment from now on
        return psutil.Process(process.pid)

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_leftovers_are_those_of_this_home_or_of_one_of_its_services(
    start: Start, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = start("one"), start("other")
    assert set(leftovers(Settings())) == {one, other}
    assert leftovers(Settings(), "one") == [one]
    monkeypatch.setenv("ANABRANCH_HOME", str(home.with_name("another")))
    assert leftovers(Settings()) == []


def test_a_process_that_hides_its_environment_is_known_by_its_session(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, foreign = start("one"), start("foreign")
    readable = psutil.Process.environ

    def environ(process: psutil.Process) -> dict[str, str]:
        if process.pid in (hidden.pid, foreign.pid):
            raise psutil.AccessDenied(process.pid)
        return readable(process)

    monkeypatch.setattr(psutil.Process, "environ", environ)
    settings = Settings()
    assert leftovers(settings) == [], "no supervisor has been started here"
    write_private(session_path(settings), str(os.getsid(hidden.pid)))
    assert leftovers(settings) == [hidden]
    assert leftovers(settings, "one") == [], "whose it is cannot be known"


def test_one_that_does_not_listen_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("one")
    monkeypatch.setattr(psutil.Process, "terminate", lambda _process: None)
    assert end_leftovers(Settings(), patience_seconds=0.1) == 1
    assert leftovers(Settings()) == []
    assert not process.is_running()


def test_a_service_ends_what_its_earlier_life_has_left_before_it_begins(start: Start, home: Path) -> None:
    mine, other = start("one"), start("other")
    done = subprocess.run(
        [sys.executable, "-m", "infra.launch", "/bin/echo", "begins"],
        env={"ANABRANCH_HOME": str(home), "ANABRANCH_SERVICE": "one", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "ended 1 processes that an earlier life of this service had left\nbegins\n"
    assert mine.status() == psutil.STATUS_ZOMBIE
    assert leftovers(Settings()) == [other]


def test_values_with_quotes_reach_the_service(home: Path) -> None:
    assert supervise._quoted("it's") == '"it\'s"'
    assert supervise._quoted('{"a": 1}') == "'{\"a\": 1}'"
