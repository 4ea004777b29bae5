"""Kafka Connect: the connector's configuration as data, and the REST calls that are needed of it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from changelog.sources.cdc.database import BEAT, PUBLICATION, REPUBLICATIONS, SIGNALS
from changelog.sources.cdc.stream import TOPIC
from runtime.errors import TransientError
from runtime.settings import Settings

CONNECTOR = "shop"
PATIENCE_SECONDS = 60.0


def secrets_path(settings: Settings) -> Path:
    """Where the worker finds what the connector's configuration may not hold, for it is kept in a topic. In a directory
    of its own: a connector may be given what lies there, and the worker's own login is none of it."""
    return settings.home / "config" / "connect" / "secrets" / "database.properties"


def login(settings: Settings) -> tuple[str, str]:
    """User and password of the worker's REST interface."""
    return settings.cdc.connect_user, settings.cdc.connect_password.get_secret_value()


def configuration(settings: Settings, tables: Sequence[str]) -> dict[str, str]:
    """The connector. The password is a reference that the worker resolves from a file that only its owner may read."""
    database = settings.cdc.database
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": database.host,
        "database.port": str(database.port),
        "database.dbname": database.name,
        "database.user": database.user,
        "database.password": f"${{file:{secrets_path(settings)}:password}}",
        **{f"database.{name}": value for name, value in database.tls.items()},
        "plugin.name": "pgoutput",
        "slot.name": settings.cdc.slot,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "table.include.list": ",".join([*(f"public.{table}" for table in tables), REPUBLICATIONS]),
        "snapshot.mode": "no_data",  # rows are read by request, beside the stream and in its order
        "signal.data.collection": SIGNALS,
        "incremental.snapshot.watermarking.strategy": "insert_delete",
        "incremental.snapshot.chunk.size": "4096",
        "provide.transaction.metadata": "true",
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": "cdc.notification",
        "topic.prefix": "cdc",
        "transforms": "one",
        "transforms.one.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.one.regex": ".*",
        "transforms.one.replacement": TOPIC,
        "decimal.handling.mode": "string",
        "skipped.operations": "none",  # TRUNCATE too
        "tombstones.on.delete": "false",
        "extended.headers.enabled": "false",
        "heartbeat.interval.ms": str(int(settings.cdc.heartbeat_seconds * 1000)),
        "heartbeat.action.query": BEAT,
        "poll.interval.ms": "100",
        "retriable.restart.connector.wait.ms": "3000",
        "producer.override.enable.idempotence": "true",
        "producer.override.compression.type": "lz4",
        "producer.override.linger.ms": "5",
        "producer.override.max.request.size": str(16 * 1024 * 1024),
    }


class Connect:
    """A client of Connect's REST interface. Every call raises TransientError if it does not answer as it should."""

    def __init__(self, settings: Settings) -> None:
        self._url, self._login = settings.cdc.connect_url, login(settings)

    def state(self) -> dict[str, Any] | None:
        """``{"connector": STATE, "task": STATE, "error": TEXT or None}``; None if there is no such connector.

        States are Connect's: RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED, RESTARTING; a task that is not there is
        UNASSIGNED.
        """
        answer = self._call("GET", f"/connectors/{CONNECTOR}/status", allowed=(404,))
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        said = answer.json()
        task = said["tasks"][0] if said["tasks"] else {"state": "UNASSIGNED"}
        error = task.get("trace") or said["connector"].get("trace")
        return {"connector": said["connector"]["state"], "task": task["state"], "error": error}

    def put(self, config: dict[str, str]) -> None:
        """Create the connector, or give it this configuration; where it has it already nothing is restarted."""
        there = self._call("GET", f"/connectors/{CONNECTOR}/config", allowed=(404,))
        if there.status_code == httpx.codes.OK and there.json() == {"name": CONNECTOR, **config}:
            return
        self._call("PUT", f"/connectors/{CONNECTOR}/config", json=config)

    def stop(self) -> None:
        """Stop the connector, and wait until its task has ended. It stays stopped until :meth:`resume`."""
        self._call("PUT", f"/connectors/{CONNECTOR}/stop")
        self.await_state("STOPPED", None)

    def resume(self) -> None:
        """Let a stopped connector run. Does not wait."""
        self._call("PUT", f"/connectors/{CONNECTOR}/resume")

    def restart_failed(self) -> None:
        """Start what has failed again. Does not wait."""
        self._call("POST", f"/connectors/{CONNECTOR}/restart?includeTasks=true&onlyFailed=true")

    def forget_offsets(self) -> None:
        """Delete the position of the stopped connector in the database's log."""
        self._call("DELETE", f"/connectors/{CONNECTOR}/offsets")

    def await_state(self, connector: str, task: str | None, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for these states of connector and task (None: no task). Raises TransientError after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            said = self.state()
            if said and said["connector"] == connector and said["task"] == (task or "UNASSIGNED"):
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"connector {CONNECTOR} is {said}, not {connector} with {task or 'no task'}: anabranch logs connect"
                )
            time.sleep(0.1)

    def _call(self, method: str, path: str, allowed: tuple[int, ...] = (), **arguments: Any) -> httpx.Response:
        """One request; while the worker takes up a change it answers 409 and is asked again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = httpx.request(method, f"{self._url}{path}", auth=self._login, timeout=30, **arguments)
                if answer.status_code not in allowed:
                    answer.raise_for_status()
                return answer
            except httpx.HTTPStatusError as error:
                said = error.response.text[:500]
                if error.response.status_code != httpx.codes.CONFLICT or time.monotonic() > deadline:
                    raise TransientError(
                        f"Kafka Connect: {method} {path}: {error.response.status_code} {said}"
                    ) from error
            except httpx.HTTPError as error:
                raise TransientError(
                    f"Kafka Connect at {self._url} does not answer ({error!r}): anabranch logs connect"
                ) from error
            time.sleep(0.2)
