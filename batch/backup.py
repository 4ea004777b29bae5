"""Backup of the catalog and of the operations database: without them nobody knows which files of the lake are tables.

A backup is one object in the lake's bucket, ``backups/<UTC time>.zip``: each table's definition and rows, as PostgreSQL
writes them. It is taken under the lock of publication, so catalog and record of publications agree. Maintenance takes
one before it deletes anything, so the newest backup never speaks of something that is gone.

Tables of the lake go on after a backup. ``restore`` therefore points each to the newest metadata file in its own
directory: what was committed since is not lost. Publications since are: the one before is served again.
"""

import io
import json
import logging
import re
import zipfile
from dataclasses import dataclass, field
from datetime import UTC, datetime

import psycopg
from psycopg import sql

from changelog.archive.store import s3_client
from runtime import ops
from runtime.errors import TerminalError
from runtime.settings import Database, Settings

log = logging.getLogger("backup")

PREFIX = "backups/"
NOT_KEPT = {"lag", "services", "archive_objects"}
"""Measurements, heartbeats, and what is remembered of objects: they make themselves anew."""


@dataclass
class Backup:
    """``rows``: of each table, as ``<database>.<table>``. ``moved``: tables of the lake that went on after it."""

    name: str
    rows: dict[str, int] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)


def backup(settings: Settings, keep: int = 50) -> Backup:
    """Take a backup and drop all but the newest ``keep``. Each call takes another one."""
    with ops.connect(settings) as connection, ops.publication_lock(connection):
        return backup_locked(settings, keep)


def backup_locked(settings: Settings, keep: int = 50) -> Backup:
    """:func:`backup` for a caller who holds the lock of publication."""
    made = Backup(f"{PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.zip")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for database in (settings.catalog, settings.ops):
            _dump(database, archive, made)
    client = s3_client(settings.s3)
    client.put_object(Bucket=settings.s3.lake_bucket, Key=made.name, Body=buffer.getvalue())
    for name in backups(settings)[keep:]:
        client.delete_object(Bucket=settings.s3.lake_bucket, Key=name)
    return made


def backups(settings: Settings) -> list[str]:
    """Names of the backups, newest first."""
    pages = s3_client(settings.s3).get_paginator("list_objects_v2")
    found = [
        item["Key"]
        for page in pages.paginate(Bucket=settings.s3.lake_bucket, Prefix=PREFIX)
        for item in page.get("Contents", ())
    ]
    return sorted(found, reverse=True)


def restore(settings: Settings) -> Backup:
    """Put both databases back to the newest backup, and every table of the lake to its newest state.

    An older one would speak of what maintenance has deleted since. Nothing else may use the databases meanwhile. A
    second call does the same again. Raises TerminalError if there is no backup.
    """
    there = backups(settings)
    if not there:
        raise TerminalError(f"there is no backup in bucket {settings.s3.lake_bucket}")
    chosen = there[0]
    client = s3_client(settings.s3)
    body = client.get_object(Bucket=settings.s3.lake_bucket, Key=chosen)["Body"].read()
    restored = Backup(chosen)
    ops.connect(settings).close()  # its own schema is there afterwards
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for database in (settings.catalog, settings.ops):
            _load(database, archive, restored)
    with psycopg.connect(settings.catalog.dsn) as connection:
        for table in _tables_of_the_lake(connection):
            _to_newest(settings, connection, table, restored)
    return restored


def _dump(database: Database, archive: zipfile.ZipFile, made: Backup) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        definitions = {}
        for (table,) in connection.execute(_TABLES).fetchall():
            if table in NOT_KEPT:
                continue
            columns = connection.execute(_COLUMNS, (table,)).fetchall()
            definitions[table] = {
                "columns": [column[0] for column in columns],
                "create": f"CREATE TABLE IF NOT EXISTS {table} ({', '.join([column[1] for column in columns])}"
                + "".join(f", {row[0]}" for row in connection.execute(_KEYS, (table,)).fetchall())
                + ")",
            }
            names = sql.SQL(", ").join(map(sql.Identifier, definitions[table]["columns"]))
            rows = io.BytesIO()
            statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(names, sql.Identifier(table))
            with connection.cursor().copy(statement) as copy:
                for block in copy:
                    rows.write(block)
            archive.writestr(f"{database.name}/{table}.copy", rows.getvalue())
            made.rows[f"{database.name}.{table}"] = rows.getvalue().count(b"\n")
        archive.writestr(f"{database.name}/tables.json", json.dumps(definitions))


def _load(database: Database, archive: zipfile.ZipFile, restored: Backup) -> None:
    """Replace the rows of every table that the backup knows, in one transaction."""
    definitions = json.loads(archive.read(f"{database.name}/tables.json"))
    with psycopg.connect(database.dsn) as connection:
        for definition in definitions.values():
            connection.execute(definition["create"])
        tables = sql.SQL(", ").join(map(sql.Identifier, definitions))
        connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(tables))
        for table in _parents_first(connection, list(definitions)):
            names = sql.SQL(", ").join(map(sql.Identifier, definitions[table]["columns"]))
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names)
            rows = archive.read(f"{database.name}/{table}.copy")
            with connection.cursor().copy(statement) as copy:
                copy.write(rows)
            restored.rows[f"{database.name}.{table}"] = rows.count(b"\n")
            for column in definitions[table]["columns"]:
                sequence = connection.execute("SELECT pg_get_serial_sequence(%s, %s)", (table, column)).fetchone()
                if sequence and sequence[0]:
                    connection.execute(
                        sql.SQL("SELECT setval(%s, coalesce((SELECT max({}) FROM {}), 0) + 1, false)").format(
                            sql.Identifier(column), sql.Identifier(table)
                        ),
                        sequence,
                    )


def _parents_first(connection: psycopg.Connection, tables: list[str]) -> list[str]:
    """Tables in an order in which foreign keys find what they refer to."""
    refers = connection.execute(
        "SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint WHERE contype = 'f'"
    ).fetchall()
    ordered: list[str] = []
    while len(ordered) < len(tables):
        for table in tables:
            waits = {parent for child, parent in refers if child == table and parent in tables} - set(ordered) - {table}
            if table not in ordered and not waits:
                ordered.append(table)
    return ordered


def _tables_of_the_lake(connection: psycopg.Connection) -> list[tuple[str, str, str]]:
    """(namespace, table, metadata file) of every Iceberg table; views are left as the backup has them."""
    return connection.execute(
        "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables "
        "WHERE iceberg_type = 'TABLE' OR iceberg_type IS NULL"
    ).fetchall()


def _to_newest(
    settings: Settings, connection: psycopg.Connection, table: tuple[str, str, str], restored: Backup
) -> None:
    """Point a table to the newest metadata file of its directory. One that has none any more loses its entry."""
    namespace, name, pointer = table
    bucket, _, directory = pointer.rpartition("/")[0].partition("://")[2].partition("/")
    client = s3_client(settings.s3)
    files = [
        item
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{directory}/")
        for item in page.get("Contents", ())
        if re.fullmatch(r"\d+-[^/]+\.metadata\.json", item["Key"].rpartition("/")[2])
    ]
    if not files:
        connection.execute(
            "DELETE FROM iceberg_tables WHERE table_namespace = %s AND table_name = %s", (namespace, name)
        )
        return
    newest = max(files, key=lambda item: (int(item["Key"].rpartition("/")[2].partition("-")[0]), item["LastModified"]))
    location = f"{pointer.partition('://')[0]}://{bucket}/{newest['Key']}"
    if location != pointer:
        restored.moved.append(f"{namespace}.{name}")
        connection.execute(
            "UPDATE iceberg_tables SET metadata_location = %s, previous_metadata_location = %s "
            "WHERE table_namespace = %s AND table_name = %s",
            (location, pointer, namespace, name),
        )


_TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"

_COLUMNS = """
SELECT attname::text, quote_ident(attname) || ' ' || format_type(atttypid, atttypmod)
    || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

_KEYS = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype IN ('p', 'u')"
