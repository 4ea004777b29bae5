"""Connections to Trino. Every statement is checked to its end: an error is raised here and nowhere later."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trino import exceptions
from trino.dbapi import Connection
from trino.dbapi import connect as dbapi_connect

from runtime.errors import TerminalError, TransientError
from runtime.settings import Settings

AT_ONCE = 4
"""Statements that are run side by side: most of a statement on a view is waiting for catalog and storage."""


def connect(settings: Settings, schema: str | None = None) -> Connection:
    """A connection with default catalog ``lake``."""
    connection: Connection = dbapi_connect(  # type: ignore[no-untyped-call]  # the client's own lack
        host=settings.trino.host,
        port=settings.trino.port,
        user=settings.trino.user,
        source="anabranch",
        catalog="lake",
        schema=schema,
        timezone="UTC",
        max_attempts=5,
    )
    return connection


def execute(connection: Connection, sql: str) -> tuple[list[str], list[Sequence[Any]]]:
    """Run one statement and fetch all: (column names, rows).

    Raises TerminalError with Trino's own message for a statement that is wrong, TransientError if Trino is not there.
    """
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
        rows = cursor.fetchall()
    except exceptions.TrinoUserError as error:
        raise TerminalError(f"{error.error_name}: {error.message}") from error
    except (exceptions.Error, OSError) as error:
        raise TransientError(f"Trino did not answer: {error}") from error
    return [column[0] for column in cursor.description or []], rows


def execute_all(settings: Settings, statements: Iterable[str], after_each: Callable[[], None] = lambda: None) -> None:
    """Run statements that give no rows, some at a time and in no order; ``after_each`` is called after each of them.

    Raises what :func:`execute` raises, for the first that failed, once all have ended.
    """

    def one(sql: str) -> None:
        execute(connect(settings), sql)
        after_each()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, statements))
