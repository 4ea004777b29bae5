"""How a service begins and ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from runtime.errors import AnabranchError, ContractError, TransientError
from runtime.heartbeat import Heartbeat
from runtime.service import EXIT_CONFIGURATION, serve
from runtime.settings import Settings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No operations database answers there, which stops nobody; signals are handled as before afterwards."""
    monkeypatch.setenv("ANABRANCH_HOME", str(tmp_path))
    monkeypatch.setenv("ANABRANCH_OPS__PORT", "1")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_says_stop(number: int) -> None:
    def work(_settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
        heartbeat.beat("running", {})
        os.kill(os.getpid(), number)
        assert stopping.wait(10)

    assert serve("tested", work) == 0


@pytest.mark.parametrize(
    ("error", "status"), [(ContractError("look"), EXIT_CONFIGURATION), (TransientError("wait"), 1)]
)
def test_an_error_of_ours_is_told_and_says_whether_to_try_again(
    error: AnabranchError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    def work(_settings: Settings, _heartbeat: Heartbeat, _stopping: Event) -> None:
        raise error

    assert serve("tested", work) == status
    assert str(error) in caplog.text


def test_any_other_error_is_a_defect_and_is_raised() -> None:
    def work(_settings: Settings, _heartbeat: Heartbeat, _stopping: Event) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        serve("tested", work)


def test_what_a_service_says_of_itself_is_in_the_file_that_a_container_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "heartbeat"
    monkeypatch.setenv("ANABRANCH_HEARTBEAT", str(file))
    seen = []

    def work(_settings: Settings, heartbeat: Heartbeat, _stopping: Event) -> None:
        for state in ("starting", "running"):
            heartbeat.beat(state, {})
            seen.append(file.read_text())
        os.utime(file, (0, 0))
        heartbeat.beat("running", {})
        seen.append(str(file.stat().st_mtime))
        raise ContractError("look")

    assert serve("tested", work) == EXIT_CONFIGURATION
    assert seen == ["starting", "running", "0.0"], "the same state is said again after some seconds only"
    assert file.read_text() == "failed"
