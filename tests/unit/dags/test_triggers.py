"""Waiting for the archive: what the trigger says, and what the task makes of it."""

import asyncio
import importlib
import time
from typing import Any

import pytest

from batch import backlog
from runtime.errors import TransientError

pytestmark = pytest.mark.unit


def answers(monkeypatch: pytest.MonkeyPatch, *given: Any) -> list[Any]:
    """``has_work`` gives these answers, the last one for ever; an exception is raised."""
    left = list(given)

    def has_work(_settings: Any) -> bool:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(backlog, "has_work", has_work)
    return left


def fire(deadline: float) -> Any:
    from dags.triggers import BacklogTrigger

    async def first() -> Any:
        async for event in BacklogTrigger(deadline, poll_seconds=0.01).run():
            return event.payload
        return None

    return asyncio.run(asyncio.wait_for(first(), 10))


@pytest.mark.usefixtures("home")
def test_the_trigger_fires_when_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    left = answers(monkeypatch, False, TransientError("away"), False, True)
    assert fire(time.time() + 60) is True
    assert left == [True], "it asked until then"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("answer", [False, TransientError("away")])
def test_the_trigger_gives_up_at_its_deadline(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    answers(monkeypatch, answer)
    assert fire(time.time() + 0.05) is False


def test_a_trigger_that_is_made_anew_waits_for_the_same() -> None:
    from dags.triggers import BacklogTrigger

    path, arguments = BacklogTrigger(12.5, 0.5).serialize()
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**arguments)
    assert again.serialize() == (path, arguments)


@pytest.mark.usefixtures("home")
def test_the_task_leaves_the_waiting_to_the_triggerer(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from dags.triggers import AwaitBacklog

    task = AwaitBacklog(task_id="await_archive", idle_seconds=60)
    answers(monkeypatch, True)
    task.execute({})
    answers(monkeypatch, False)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute({})
    assert deferred.value.method_name == "resume"
    assert deferred.value.trigger.deadline == pytest.approx(time.time() + 60, abs=5)


def test_a_run_without_work_is_skipped_and_no_failure() -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from dags.triggers import AwaitBacklog

    task = AwaitBacklog(task_id="await_archive", idle_seconds=60)
    task.resume({}, True)
    with pytest.raises(AirflowSkipException, match="nothing new was archived for 60 s"):
        task.resume({}, False)
