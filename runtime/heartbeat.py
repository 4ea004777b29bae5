"""Heartbeats: what a long-running service says of itself, in the operations database."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import psycopg

log = logging.getLogger(__name__)


class Heartbeat:
    """Writes one row of ``services``: name, pid, state (starting, running, stopping, failed), detail.

    A database that is away is no reason to stop working: it is logged once, and the next beat tries again. Where
    ``$ANABRANCH_HEARTBEAT`` names a file, the state is in it as well, as old as the beat: a container's health check
    reads it, and asks no database whether this service works.
    """

    def __init__(self, dsn: str, name: str, every_seconds: float = 2.0) -> None:
        self._dsn = dsn
        self._name = name
        self._every = every_seconds
        self._connection: psycopg.Connection[Any] | None = None
        self._last: tuple[str, float] = ("", 0.0)
        self._away = False
        file = os.environ.get("ANABRANCH_HEARTBEAT")
        self._file = Path(file) if file else None

    def beat(self, state: str, detail: dict[str, Any]) -> None:
        """Say so now if the state is a new one or the last beat is older than ``every_seconds``; else do nothing.

        What ``detail`` does not name stays as it was said last: a service that fails has still reached its position.
        """
        now = time.monotonic()
        if self._last[0] == state and now - self._last[1] < self._every:
            return
        self._last = (state, now)
        if self._file:
            self._file.write_text(state)
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._dsn, autocommit=True, connect_timeout=5)
            self._connection.execute(
                "INSERT INTO services VALUES (%s, %s, %s, %s, now()) ON CONFLICT (name) DO UPDATE SET "
                "(pid, state, detail, updated_at) = "
                "(excluded.pid, excluded.state, (services.detail - 'error') || excluded.detail, now())",
                (self._name, os.getpid(), state, json.dumps(detail)),
            )
            self._away = False
        except psycopg.Error as error:
            if not self._away:
                log.warning("the operations database does not take heartbeats: %s", error)
            self._away = True
            self._connection = None
