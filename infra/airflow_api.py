"""Airflow's REST API, for those of our commands that ask Airflow to do something or what it is about to do."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from infra.airflow import url
from runtime.errors import TerminalError, TransientError
from runtime.settings import Settings


class AirflowApi:
    """The API, as this home's user. Raises TransientError if it does not answer."""

    def __init__(self, settings: Settings) -> None:
        self._client = httpx.Client(base_url=url(settings), timeout=30)
        login = {"username": settings.airflow.user, "password": settings.airflow.password.get_secret_value()}
        token = self.request("POST", "/auth/token", login)["access_token"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One call; the JSON that it answers. Raises TerminalError, with Airflow's own words, if it refuses."""
        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise TransientError(f"Airflow does not answer ({error}): anabranch status") from error
        if answer.is_client_error:
            raise TerminalError(f"Airflow refuses {method} {path}: {answer.text}")
        if answer.is_error:
            raise TransientError(f"Airflow fails at {method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        """GET below ``/api/v2``."""
        return self.request("GET", f"/api/v2/{path}")

    def trigger(self, dag: str, **params: Any) -> str:
        """Start a run of a DAG with the parameters of its form. Returns its id. Each call starts another."""
        body = {"logical_date": None, "conf": params}
        return str(self.request("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def pause(self, dag: str, paused: bool) -> None:
        """Stop or resume the schedule of a DAG."""
        self.request("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """The state of each task of a run."""
        found = self.get(f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: str(task["state"]) for task in found}

    def result(self, dag: str, run: str, task: str) -> Any:
        """What a task returned."""
        entry = self.get(f"dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true")
        return entry["value"]

    def wait(
        self, dag: str, run: str, seconds: float, progress: Callable[[dict[str, str]], None] = lambda _: None
    ) -> dict[str, str]:
        """Await the end of a run; the states of its tasks. ``progress`` is told when one changes.

        Raises TerminalError if the run fails, TransientError after ``seconds``.
        """
        deadline, before = time.monotonic() + seconds, dict[str, str]()
        while True:
            state, tasks = self.get(f"dags/{dag}/dagRuns/{run}")["state"], self.tasks(dag, run)
            if tasks != before:
                progress(tasks)
                before = tasks
            if state == "success":
                return tasks
            if state == "failed":
                raise TerminalError(f"run {run} of DAG {dag} failed: {tasks}; the logs of its tasks say why")
            if time.monotonic() > deadline:
                raise TransientError(f"run {run} of DAG {dag} has not ended after {seconds:.0f} s: {tasks}")
            time.sleep(0.5)

    def next_run(self, dag: str) -> str | None:
        """When the next scheduled run of a DAG begins (ISO 8601), None if none will."""
        found = self.get(f"dags/{dag}")
        return None if found["is_paused"] else found["next_dagrun_run_after"]
