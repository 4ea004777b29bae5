"""The operational database as capture sees it: what is published, the replication slot, signals to the connector."""

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import psycopg
from psycopg import sql

from runtime.errors import TransientError
from runtime.settings import Settings

Connection = psycopg.Connection[Any]

SCHEMA = "cdc"
"""Schema of what capture keeps in the database: signals to the connector, and a row that its heartbeat touches."""

SIGNALS, HEARTBEAT, PUBLICATION = f"{SCHEMA}.signal", f"{SCHEMA}.heartbeat", "anabranch"

REPUBLICATIONS = f"{SCHEMA}.republication"
"""Rows written here come by the stream, in its order (``changelog.sources.cdc.republish``); none of them stays."""

OWN = (SIGNALS, HEARTBEAT, REPUBLICATIONS)

BEAT = f"UPDATE {HEARTBEAT} SET beaten_at = now()"
"""What the connector runs at every heartbeat. It is published, so the slot moves on where the shop is quiet."""


PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Slot:
    """The replication slot. ``lost``: PostgreSQL gave up the WAL that it would need. ``behind_bytes``: WAL kept for
    it. ``left_bytes``: how much more may be written until it is lost; None without a limit."""

    active: bool
    lost: bool
    behind_bytes: int
    left_bytes: int | None


def connect(settings: Settings) -> Connection:
    """An autocommit connection to the shop's database as the role that captures. Raises TransientError."""
    database = settings.cdc.database
    try:
        return psycopg.connect(database.dsn, autocommit=True, connect_timeout=5)
    except psycopg.OperationalError as error:
        raise TransientError(f"the shop's database at {database.host}:{database.port}: {error}") from error


def create_shop(connection: Connection) -> None:
    """Create the shop's tables where they are missing. ``connection`` is the application's own."""
    connection.execute((resources.files("changelog.sources.shop") / "schema.sql").read_bytes())


def prepare(connection: Connection, settings: Settings, tables: Sequence[str]) -> None:
    """Let the role of capture read ``tables`` (of schema ``public``), and publish their rows whole, before and after.

    ``connection`` is a superuser's: publications and other people's tables need one. A second call changes nothing but
    what has to be changed: tables that are new are added, others are taken out.
    """
    role = sql.Identifier(settings.cdc.database.user)
    schema, published = sql.Identifier(SCHEMA), [f"public.{table}" for table in tables]
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(schema, role))
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
    for table in tables:
        name = sql.Identifier("public", table)
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(name, role))
        identity = "SELECT relreplident::text FROM pg_class WHERE oid = %s::regclass"
        if connection.execute(identity, (f"public.{table}",)).fetchone() != ("f",):
            connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
    connection.execute(f"CREATE TABLE IF NOT EXISTS {SIGNALS} (id text PRIMARY KEY, type text NOT NULL, data text)")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {HEARTBEAT} (id int PRIMARY KEY CHECK (id = 1), beaten_at timestamptz NOT NULL)"
    )
    connection.execute(f"INSERT INTO {HEARTBEAT} VALUES (1, now()) ON CONFLICT DO NOTHING")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {REPUBLICATIONS} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "request text NOT NULL, content text)"
    )
    for table in OWN:
        connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(sql.SQL(table), role))
    _publish(connection, [*published, *OWN])


def _publish(connection: Connection, tables: Iterable[str]) -> None:
    names = sql.SQL(", ").join(sql.Identifier(*table.split(".")) for table in tables)
    there = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (PUBLICATION,)).fetchone()
    verb = "ALTER PUBLICATION {} SET TABLE {}" if there else "CREATE PUBLICATION {} FOR TABLE {}"
    connection.execute(sql.SQL(verb).format(sql.Identifier(PUBLICATION), names))


def is_empty(connection: Connection, tables: Iterable[str]) -> bool:
    """Whether none of ``tables`` (of schema ``public``) has a row."""
    for table in tables:
        name = sql.Identifier("public", table)
        if connection.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(name)).fetchone() is not None:
            return False
    return True


def slot(connection: Connection, name: str) -> Slot | None:
    """The slot as it is now; None if there is none of this name in this database."""
    row = connection.execute(
        "SELECT active, wal_status, pg_current_wal_lsn() - coalesce(confirmed_flush_lsn, restart_lsn), safe_wal_size "
        "FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()",
        (name,),
    ).fetchone()
    if row is None:
        return None
    active, status, behind, left = row
    return Slot(active, status == "lost", int(behind or 0), None if left is None else int(left))


def await_idle(connection: Connection, name: str) -> None:
    """Wait until nobody reads from the slot, if there is one. Raises TransientError if somebody goes on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (there := slot(connection, name)) is not None and there.active:
        if time.monotonic() > deadline:
            raise TransientError(f"replication slot {name} is in use; end who reads from it (pg_stat_replication)")
        time.sleep(0.1)


def make_slot(connection: Connection, name: str) -> str:
    """Create the slot; one of this name, from which nobody may read, is dropped first. Returns the LSN from which on it
    gives changes."""
    if slot(connection, name) is not None:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    row = connection.execute("SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    return str(row.fetchone()[0])  # type: ignore[index]


def request_snapshot(connection: Connection, tables: Iterable[str], identity: str | None = None) -> str:
    """Ask the connector to read ``tables`` (of schema ``public``) again, beside the stream. Returns the request's id.

    With ``identity`` a second call asks for nothing while the first request is there.
    """
    identity = identity or f"snapshot-{uuid.uuid4()}"
    data = json.dumps({"type": "INCREMENTAL", "data-collections": [f"public.{table}" for table in tables]})
    connection.execute(
        f"INSERT INTO {SIGNALS} VALUES (%s, 'execute-snapshot', %s) ON CONFLICT DO NOTHING", (identity, data)
    )
    return identity
