"""Connections to Trino. Every statement is checked to its end: an error is raised here and nowhere later."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import requests
from trino import exceptions
from trino.auth import BasicAuthentication
from trino.dbapi import Connection
from trino.dbapi import connect as dbapi_connect

from runtime.errors import TerminalError, TransientError
from runtime.settings import Settings

STALE_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)
"""Seconds between attempts: as long as PostgreSQL takes to come back, and as often as Trino keeps connections."""

REPEATABLE = ("SELECT", "WITH", "SHOW", "EXPLAIN", "CREATE OR REPLACE", "CREATE SCHEMA IF NOT EXISTS")
"""How statements begin that may be run again."""

AT_ONCE = 4
"""Statements that are run side by side: most of a statement on a view is waiting for catalog and storage."""


def connect(settings: Settings, schema: str | None = None) -> Connection:
    """A connection with default catalog ``lake``, over TLS, as the user that the settings name."""
    session = requests.Session()
    session.trust_env = False  # no proxy, and no other bundle of certificates: the environment's would come first
    session.verify = str(settings.trino.ca_file) if settings.trino.ca_file else True
    connection: Connection = dbapi_connect(  # type: ignore[no-untyped-call]  # the client's own lack
        host=settings.trino.host,
        port=settings.trino.port,
        http_scheme="https",
        http_session=session,
        user=settings.trino.user,
        auth=BasicAuthentication(settings.trino.user, settings.trino.password.get_secret_value()),
        source="anabranch",
        catalog="lake",
        schema=schema,
        timezone="UTC",
        max_attempts=5,
    )
    return connection


def literal(value: str | datetime) -> str:
    """A text or a time as SQL. Raises ValueError for a time without its zone."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return f"TIMESTAMP '{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC'"


def execute(connection: Connection, sql: str) -> tuple[list[str], list[Sequence[Any]]]:
    """Run one statement and fetch all: (column names, rows).

    Where Trino's own connection to the catalog's database has died (Trino keeps some, and finds out as it uses them)
    the statement is run again, if it is one that may be (``REPEATABLE``). Raises TerminalError with Trino's own message
    for a statement that is wrong, TransientError if Trino is not there.
    """
    for pause in (*STALE_PAUSES, None):
        cursor = connection.cursor()
        try:
            cursor.execute(sql)
            rows = cursor.fetchall()
            return [column[0] for column in cursor.description or []], rows
        except exceptions.TrinoUserError as error:
            raise TerminalError(f"{error.error_name}: {error.message}") from error
        except exceptions.TrinoQueryError as error:
            if pause is None or not is_stale(error.failure_info) or not sql.lstrip().upper().startswith(REPEATABLE):
                raise TransientError(f"Trino did not answer: {error}") from error
            time.sleep(pause)
        except (exceptions.Error, exceptions.HttpError, OSError) as error:
            raise TransientError(f"Trino did not answer: {error}") from error
    raise AssertionError("unreachable")


def is_stale(failure: Mapping[str, Any] | None) -> bool:
    """Whether PostgreSQL's driver within Trino is the cause of a failure, as Trino describes it."""
    while failure:
        if str(failure.get("type", "")).startswith("org.postgresql."):
            return True
        failure = failure.get("cause")
    return False


def execute_all(settings: Settings, statements: Iterable[str], after_each: Callable[[], None] = lambda: None) -> None:
    """Run statements that give no rows, some at a time and in no order; ``after_each`` is called after each of them.

    Raises what :func:`execute` raises, for the first that failed, once all have ended.
    """

    def one(sql: str) -> None:
        execute(connect(settings), sql)
        after_each()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, statements))
