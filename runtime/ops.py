"""The operations database: generations, publications, runs. Schema, connection, and the one lock of publication."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from runtime.errors import TransientError
from runtime.settings import Settings

Connection = psycopg.Connection[dict[str, Any]]

SCHEMA = """
CREATE TABLE IF NOT EXISTS generations (
    pipeline text NOT NULL, generation int NOT NULL, code_version text NOT NULL,
    start_vector jsonb NOT NULL, warm_vector jsonb NOT NULL, topic_ids jsonb NOT NULL,
    horizon_seconds int NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, generation)
);
CREATE TABLE IF NOT EXISTS runs (
    run_id text PRIMARY KEY, kind text NOT NULL, pipeline text, generation int, epoch bigint, vector jsonb,
    views jsonb NOT NULL DEFAULT '{}', code_version text NOT NULL, state text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(), finished_at timestamptz, detail jsonb NOT NULL DEFAULT '{}'
);
CREATE TABLE IF NOT EXISTS publications (
    publication bigserial PRIMARY KEY, pipeline text NOT NULL, kind text NOT NULL, run_id text,
    generation int NOT NULL, state text NOT NULL, code_version text NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(), finished_at timestamptz
);
CREATE TABLE IF NOT EXISTS publication_views (
    publication bigint NOT NULL REFERENCES publications, view text NOT NULL, topic text NOT NULL, run_id text,
    generation int NOT NULL,
    epoch bigint NOT NULL, vector jsonb NOT NULL, snapshot bigint, records bigint NOT NULL DEFAULT 0, restores bigint,
    retired_at timestamptz, PRIMARY KEY (publication, view)
);
CREATE TABLE IF NOT EXISTS speed_floors (
    pipeline text NOT NULL, generation int NOT NULL, epoch bigint NOT NULL, PRIMARY KEY (pipeline, generation)
);
CREATE TABLE IF NOT EXISTS holds (
    pipeline text PRIMARY KEY, publication bigint NOT NULL, held_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS archived (
    topic text NOT NULL, kafka_partition int NOT NULL, kafka_offset bigint NOT NULL, append_time timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (topic, kafka_partition)
);
CREATE TABLE IF NOT EXISTS archive_objects (
    object text PRIMARY KEY, etag text NOT NULL, last_offset bigint NOT NULL, records bigint NOT NULL,
    read_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS lag (
    measured_at timestamptz NOT NULL, component text NOT NULL, topic text NOT NULL, kafka_partition int NOT NULL,
    kafka_offset bigint NOT NULL, end_offset bigint NOT NULL, lag bigint NOT NULL, behind_seconds double precision,
    PRIMARY KEY (measured_at, component, topic, kafka_partition)
);
CREATE TABLE IF NOT EXISTS comparisons (
    run_id text PRIMARY KEY, report jsonb NOT NULL, compared_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS alerts (
    alert text PRIMARY KEY, message text NOT NULL, since timestamptz NOT NULL DEFAULT now(), ended_at timestamptz,
    told text
);
CREATE TABLE IF NOT EXISTS drift (
    measured_at timestamptz NOT NULL, entity text NOT NULL, compared bigint NOT NULL, missing bigint NOT NULL,
    extra bigint NOT NULL, changed bigint NOT NULL, refused bigint NOT NULL, moving bigint NOT NULL,
    severity text NOT NULL, action text NOT NULL, examples jsonb NOT NULL, PRIMARY KEY (measured_at, entity)
);
CREATE TABLE IF NOT EXISTS dead_letter_replays (
    topic text NOT NULL, kafka_partition int NOT NULL, kafka_offset bigint NOT NULL, appended_at timestamptz NOT NULL,
    to_topic text NOT NULL, key bytea NOT NULL, ref text NOT NULL, service_name text NOT NULL, identifier text NOT NULL,
    to_partition int, to_offset bigint, noted_at timestamptz NOT NULL DEFAULT now(), replayed_at timestamptz,
    PRIMARY KEY (topic, kafka_partition, kafka_offset)
);
CREATE TABLE IF NOT EXISTS erasures (
    erasure int PRIMARY KEY, digest bytea NOT NULL UNIQUE, secret_check bytea NOT NULL, state text NOT NULL,
    ref text, identifying jsonb, purge boolean NOT NULL DEFAULT false, log_end jsonb NOT NULL,
    records jsonb NOT NULL DEFAULT '{}', steps jsonb NOT NULL DEFAULT '{}', found jsonb NOT NULL DEFAULT '[]',
    requested_at timestamptz NOT NULL DEFAULT now(), derived_at timestamptz, finished_at timestamptz
);
CREATE TABLE IF NOT EXISTS services (
    name text PRIMARY KEY, pid int NOT NULL, state text NOT NULL, detail jsonb NOT NULL, updated_at timestamptz NOT NULL
);
CREATE OR REPLACE VIEW erasing AS SELECT ref FROM erasures WHERE ref IS NOT NULL;
ALTER TABLE generations ADD COLUMN IF NOT EXISTS erasures int NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN IF NOT EXISTS location text NOT NULL DEFAULT 'batch';
ALTER TABLE publication_views ADD COLUMN IF NOT EXISTS retired_at timestamptz;
ALTER TABLE generations ADD COLUMN IF NOT EXISTS batch_services jsonb NOT NULL DEFAULT '[]';
ALTER TABLE generations ADD COLUMN IF NOT EXISTS cause text;
ALTER TABLE generations ADD COLUMN IF NOT EXISTS reason text;
ALTER TABLE erasures ADD COLUMN IF NOT EXISTS names jsonb NOT NULL DEFAULT '{}';
ALTER TABLE publication_views ADD COLUMN IF NOT EXISTS withdrawn_at timestamptz;
ALTER TABLE erasures ADD COLUMN IF NOT EXISTS left_out int NOT NULL DEFAULT 0;
CREATE OR REPLACE VIEW served AS SELECT DISTINCT ON (v.view) p.pipeline, p.kind, p.published_at, v.*
    FROM publication_views v JOIN publications p USING (publication)
    WHERE p.state = 'finished' AND v.withdrawn_at IS NULL ORDER BY v.view, v.publication DESC;
"""
"""Every statement can be run again. ``archived`` and ``archive_objects`` are caches of what the lake and the objects
say; losing them loses time only. ``speed_floors``: rows of a generation below this epoch may have been deleted.
``generations.cause``, ``reason``: what was lost, of a generation that the speed layer began by itself.
``served``: the newest finished publication of each view that is served.
``publication_views.withdrawn_at``: the view was no longer defined when somebody published; nothing is served under its
name, and what it served is not served again.
``dead_letter_replays``: what became of a dead letter; without ``replayed_at`` it is not known yet.
``erasures``: the guests who are erased, for ever; ``ref`` and ``identifying`` tell who it is, and go when it is
finished; ``names`` are keyed hashes of what a bad record names him by, and their lengths, for ever; ``left_out`` counts
values that are not looked for. ``generations.erasures``: those that a generation has taken in, 1 … n."""

_SCHEMA_MARK = f"anabranch {hashlib.sha256(SCHEMA.encode()).hexdigest()[:12]}"
_OWNED = """SELECT pg_has_role(datdba, 'USAGE') AS owned FROM pg_database WHERE datname = current_database()"""
_PUBLICATION_LOCK = 7_302_025
_SCHEMA_LOCK = 7_302_026
_REPLAY_LOCK = 7_302_029
_COMMANDS_LOCK = 7_302_028


def connect(settings: Settings) -> Connection:
    """An autocommit connection whose rows are dicts; the schema is there. Raises TransientError if the database is
    down, or if its tables are another version's and whoever asks does not own them."""
    try:
        connection = psycopg.connect(settings.ops.dsn, autocommit=True, row_factory=dict_row, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise TransientError(
            f"the operations database at {settings.ops.host}:{settings.ops.port} does not answer ({error}); is the "
            "platform up? anabranch status"
        ) from error
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        row = connection.execute("SELECT obj_description('public'::regnamespace) AS said").fetchone()
        if row != {"said": _SCHEMA_MARK}:
            if connection.execute(_OWNED).fetchone() != {"owned": True}:
                raise TransientError(
                    "the operations database has another version's tables; bring it up to date: anabranch up"
                )
            connection.execute(SCHEMA)
            connection.execute(f"COMMENT ON SCHEMA public IS '{_SCHEMA_MARK}'")
    return connection


@contextmanager
def publication_lock(connection: Connection) -> Iterator[None]:
    """Hold the lock of publication, rollback, deletion and expiry; waits for whoever has it.

    The lock belongs to the connection: it is released at the end, and by PostgreSQL if the process dies.
    """
    with _lock(connection, _PUBLICATION_LOCK):
        yield


@contextmanager
def replay_lock(connection: Connection) -> Iterator[None]:
    """Hold the lock of the replay of dead letters, as above."""
    with _lock(connection, _REPLAY_LOCK):
        yield


@contextmanager
def _lock(connection: Connection, number: int) -> Iterator[None]:
    connection.execute("SELECT pg_advisory_lock(%s)", (number,))
    try:
        yield
    finally:
        if not connection.closed:  # or the server released it
            connection.execute("SELECT pg_advisory_unlock(%s)", (number,))


def try_commands_lock(connection: Connection) -> bool:
    """Take the lock of the service that answers commands, if nobody has it. It belongs to the connection, as above."""
    row = connection.execute("SELECT pg_try_advisory_lock(%s) AS taken", (_COMMANDS_LOCK,)).fetchone()
    return row == {"taken": True}
