"""Every test of this directory that is about a fault is a line of the table (see report.py)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.topics import end_offsets
from runtime.settings import Settings
from serving.wait import wait
from tests.faults import report
from tests.faults.catalogue import Fault
from tests.faults.places import Checker

OUTCOME = pytest.StashKey[str]()
FAILURE = pytest.StashKey[str]()


def name_of(item: pytest.Item) -> str:
    """What a test is called in the table: a case of the catalogue by its own name."""
    case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
    if isinstance(case, Fault):
        return case.name
    return f"{item.path.stem.removeprefix('test_')}.{item.name.removeprefix('test_')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With ``--rest`` leave out what has passed by the lines that there are."""
    if config.getoption("--rest"):
        done = {line["name"] for line in report.newest_lines() if line["outcome"] == "passed"}
        config.hook.pytest_deselected(items=[item for item in items if name_of(item) in done])
        items[:] = [item for item in items if name_of(item) not in done]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Nothing left is well."""
    if session.config.getoption("--rest") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Remember how a test ended, for its line, and of a failure the beginning of what it says."""
    made: Any = yield
    result = made.get_result()
    if result.when == "call" or result.failed:
        item.stash[OUTCOME] = result.outcome
    if call.excinfo is not None and result.failed:
        item.stash.setdefault(FAILURE, " ".join(str(call.excinfo.value).split())[:400])


@pytest.fixture(autouse=True)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[report.Report | None]:
    """The line of this test: kills are counted, recovery is timed, and records are counted, whatever the test does.

    A test of the catalogue fills in the rest; any other one asserts that nothing is lost or doubled by itself.
    """
    node: pytest.Item = request.node
    if node.get_closest_marker("faults") is None:
        yield None
        return
    function = getattr(node, "function", None)
    what = " ".join(((function.__doc__ or "") if function else "").strip().split("\n\n")[0].split())
    name = name_of(node)
    line = report.begin(report.Report(name, what or name.partition(".")[2].replace("_", " ")))

    def timed(*arguments: Any, **named: Any) -> Any:
        reached = wait(*arguments, **named)
        line.recovered()
        return reached

    monkeypatch.setattr("tests.services.wait", timed)
    try:
        yield line
    finally:
        outcome = node.stash.get(OUTCOME, "failed")
        if line.recovery_seconds is None and line.last_act is not None:
            line.recovery_seconds = round(time.monotonic() - line.last_act, 1)  # a test without views: until checked
        if outcome == "passed" and line.lost is None:
            line.lost = line.doubled = line.altered = 0
            line.records = line.records or log_size(request)
        if failure := node.stash.get(FAILURE, ""):
            line.told(failure)
        line.write(outcome)
        report.end()


def log_size(request: pytest.FixtureRequest) -> int:
    """How many offsets the log has by now; 0 where Kafka does not answer."""
    if "platform" not in request.fixturenames:
        return 0
    try:
        ends = end_offsets(request.getfixturevalue("platform"))
    except Exception:
        return 0
    return sum(offset for parts in ends.values() for offset in parts.values())


@pytest.fixture(scope="session")
def checker(platform: Settings, tmp_path_factory: pytest.TempPathFactory) -> Checker:
    """The checker of the platform; its journal has what the catalogue's writers wrote."""
    journal: Path = tmp_path_factory.mktemp("journal")
    return Checker(platform, journal)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Callable[[], SparkSession]:
    """The tests' Spark session, made when it is first asked for."""
    return lambda: request.getfixturevalue("lake")
