"""Maintenance: what keeps queries fast and the lake small. ``spark-submit batch/maintenance.py`` or ``anabranch
maintenance``.

It retires old publications and unpublished runs, takes a backup, deletes what only they needed (speed rows below the
oldest boundary that can be published, tags), puts small files of the archive together, expires snapshots that nothing
pins, and removes files that nothing refers to. It runs while the stream writes and batch runs build: what it changes is
never what they write. (The speed table's new files are put together by the stream itself, see speed/compaction.py.)
Killed at any point it leaves nothing half done that counts; a second call goes on.
"""

import argparse
import json
import logging
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from batch.backup import backup_locked
from batch.batch_table import EMPTY_TAG
from batch.retention import GONE, Kept, retire
from changelog.archive.store import s3_client
from runtime import faults
from runtime.ops import Connection, connect, publication_lock
from runtime.settings import Settings
from runtime.spark import CATALOG, deleting, job

log = logging.getLogger("maintenance")

SPEED_SNAPSHOTS = timedelta(minutes=10)
OTHER_SNAPSHOTS = timedelta(hours=24)
"""Snapshots younger than that stay, for queries and jobs that read them."""

ORPHANS_EVERY = timedelta(hours=24)
ORPHANS_OLDER = timedelta(hours=48)
SCRATCH_OLDER = timedelta(hours=24)
DELETED_AT_ONCE = 1000


@dataclass
class Report:
    """What was done. ``tables``: for each, what it holds now: data files, snapshots. ``failed``: tried again next time,
    usually because a writer came first."""

    retired: int = 0
    backup: str = ""
    speed_partitions: int = 0
    refs: int = 0
    rewritten_files: int = 0
    expired_files: int = 0
    metadata_files: int = 0
    orphans: int = 0
    scratch: int = 0
    failed: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0


def maintain(spark: SparkSession, settings: Settings, orphans: bool = False) -> Report:
    """Do it all once. ``orphans``: look for orphan files now, not only once a day."""
    began = time.monotonic()
    report = Report()
    with connect(settings) as ops:
        with publication_lock(ops):
            refs = {table: refs_of(spark, table) for table in tables_of(spark, "batch")}  # a later one is a new build's
            kept = retire(ops, settings.batch.keep_publications, settings.batch.keep_runs_hours)
            report.retired = kept.retired
            report.backup = backup_locked(settings).name  # before anything that it speaks of is deleted
            faults.point("maintenance.retired")
            delete_speed_rows(spark, kept, report)
            drop_refs(spark, refs, kept, report)
        for table in tables_of(spark, "archive"):
            _rewrite(spark, table, report)
        faults.point("maintenance.before-expiry")
        removing = deleting(spark, settings)
        for table in tables_of(spark, "speed"):
            _expire(removing, table, SPEED_SNAPSHOTS, report)
        for table in [*tables_of(spark, "archive"), *tables_of(spark, "batch")]:
            _expire(removing, table, OTHER_SNAPSHOTS if ".archive." in table else SPEED_SNAPSHOTS, report)
        for namespace in ("archive", "batch", "speed"):
            for table in tables_of(spark, namespace):
                _remove_metadata(spark, settings, table, report)
        _drop_scratch(removing, report)
        if orphans or _orphans_are_due(ops):
            for namespace in ("archive", "batch", "speed"):
                for table in tables_of(spark, namespace):
                    _remove_orphans(removing, table, report)
            _note_orphans(ops)
        report.seconds = round(time.monotonic() - began, 3)
    for namespace in ("archive", "batch", "speed"):
        for table in tables_of(spark, namespace):
            report.tables[table.removeprefix(f"{CATALOG}.")] = _measure(spark, table)
    return report


def delete_speed_rows(spark: SparkSession, kept: Kept, report: Report) -> None:
    """Whole partitions below the floors: a commit that drops files and reads none, so the stream is not in its way."""
    for table in tables_of(spark, "speed"):
        pipeline = table.rpartition(".")[2]
        partitions = spark.sql(
            "SELECT partition.generation, partition.epoch_trunc, max(readable_metrics.epoch.upper_bound) AS last "
            f"FROM {table}.files GROUP BY 1, 2"
        ).collect()
        for (floor_of, generation), floor in sorted(kept.floors.items()):
            mine = [row["last"] for row in partitions if row["generation"] == generation]
            newest = max(mine, default=0)  # stays: where a generation that can go on stands is read from its rows
            gone = [last for last in mine if last < floor and (last < newest or floor == GONE)]
            if floor_of != pipeline or not gone:
                continue
            below = f"generation = {generation} AND epoch <= {max(gone)}"
            if _try(spark, f"DELETE FROM {table} WHERE {below}", report) is not None:
                report.speed_partitions += len(gone)
                log.info("%s: %s deleted", table, below)


def refs_of(spark: SparkSession, table: str) -> list[Row]:
    """Branches and tags: name, type, snapshot_id."""
    return spark.sql(f"SELECT name, type, snapshot_id FROM {table}.refs").collect()


def drop_refs(spark: SparkSession, refs: dict[str, list[Row]], kept: Kept, report: Report) -> None:
    """Tags that pin what can no longer be published, and branches that a killed run left.

    ``refs`` were there before it was decided what is kept: a build notes itself before it makes its branch.
    """
    for table, there in refs.items():
        pinned = kept.snapshots.get(table.rpartition(".")[2], set())
        for row in there:
            if row["name"] in ("main", EMPTY_TAG):
                continue
            named = re.fullmatch(r"run_(.+)_\d+|branch_(.+)_[0-9a-f]{8}", row["name"])
            run = (named[1] or named[2]) if named else None
            if run in kept.building or (row["type"] == "TAG" and row["snapshot_id"] in pinned):
                continue
            if _try(spark, f"ALTER TABLE {table} DROP {row['type']} IF EXISTS `{row['name']}`", report) is not None:
                report.refs += 1


def _rewrite(spark: SparkSession, table: str, report: Report) -> None:
    """Put small files together where they have become many."""
    done = _try(
        spark,
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{table}', "
        "options => map('min-input-files', '16', 'target-file-size-bytes', '134217728'))",
        report,
    )
    report.rewritten_files += done[0]["rewritten_data_files_count"] if done else 0


def _expire(spark: SparkSession, table: str, age: timedelta, report: Report) -> None:
    """Forget snapshots that are older and that neither a tag nor a branch pins, with the files that only they need."""
    done = _try(
        spark,
        f"CALL {CATALOG}.system.expire_snapshots(table => '{table}', "
        f"older_than => TIMESTAMP '{_ago(age)}', retain_last => 1)",
        report,
    )
    report.expired_files += sum(value or 0 for value in done[0]) if done else 0


def expire_now(spark: SparkSession, table: str, report: Report) -> None:
    """Forget all snapshots of a table but those that are pinned and the newest, at once: a query that still reads one
    of them fails."""
    _expire(spark, table, timedelta(seconds=-2), report)


def _remove_metadata(spark: SparkSession, settings: Settings, table: str, report: Report) -> None:
    """Delete the metadata files of versions before those that the table keeps. None of them is current or can become
    it: a commit replaces the version before its own, whoever makes it, and whenever."""
    kept = _try(spark, f"SELECT file FROM {table}.metadata_log_entries", report)
    if not kept:
        return
    directory = str(kept[0]["file"]).rpartition("/")[0] + "/"
    bucket, _, prefix = directory.removeprefix("s3://").partition("/")
    oldest = min(_version(row["file"]) for row in kept)
    client = s3_client(settings.s3)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    there = [item["Key"] for page in pages for item in page.get("Contents", ())]
    gone = [key for key in there if key.endswith(".metadata.json") and _version(key) < oldest]
    for first in range(0, len(gone), DELETED_AT_ONCE):
        client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": key} for key in gone[first : first + DELETED_AT_ONCE]]}
        )
    report.metadata_files += len(gone)


def _version(file: str) -> int:
    """``…/00012-<uuid>.metadata.json`` → 12."""
    return int(file.rpartition("/")[2].partition("-")[0])


def _remove_orphans(spark: SparkSession, table: str, report: Report) -> None:
    done = _try(
        spark,
        f"CALL {CATALOG}.system.remove_orphan_files(table => '{table}', prefix_listing => true, "
        f"older_than => TIMESTAMP '{_ago(ORPHANS_OLDER)}')",
        report,
    )
    report.orphans += len(done or [])


def _drop_scratch(spark: SparkSession, report: Report) -> None:
    """Tables that a killed ``verify`` left."""
    for table in tables_of(spark, "scratch"):
        newest = spark.sql(f"SELECT max(committed_at) AS at FROM {table}.snapshots").collect()[0]["at"]
        if newest is None or newest.replace(tzinfo=UTC) < datetime.now(UTC) - SCRATCH_OLDER:
            spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")
            report.scratch += 1


def _orphans_are_due(ops: Connection) -> bool:
    row = ops.execute("SELECT finished_at AS at FROM runs WHERE kind = 'orphans'").fetchone()
    if row is None:
        _note_orphans(ops)  # a new lake has none: the first look is a day later
    return row is not None and row["at"] < datetime.now(UTC) - ORPHANS_EVERY


def _note_orphans(ops: Connection) -> None:
    ops.execute(
        "INSERT INTO runs (run_id, kind, code_version, state, finished_at) VALUES (':orphans', 'orphans', '', 'done', "
        "now()) ON CONFLICT (run_id) DO UPDATE SET finished_at = now()"
    )


def _measure(spark: SparkSession, table: str) -> dict[str, int]:
    """Data files that a query of the table as it is now opens, and snapshots that its metadata carries."""
    row = spark.sql(
        f"SELECT (SELECT count(*) FROM {table}.files) AS files, (SELECT count(*) FROM {table}.snapshots) AS snapshots"
    ).collect()[0]
    return {"files": row["files"], "snapshots": row["snapshots"]}


def tables_of(spark: SparkSession, namespace: str) -> list[str]:
    """The tables of a namespace, by name; none if it is not there."""
    there = {row[0] for row in spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()}
    if namespace not in there:
        return []
    shown = spark.sql(f"SHOW TABLES IN {CATALOG}.{namespace}").collect()
    return sorted(f"{CATALOG}.{namespace}.{row['tableName']}" for row in shown)


def _ago(age: timedelta) -> str:
    return (datetime.now(UTC) - age).strftime("%Y-%m-%d %H:%M:%S")


def _try(spark: SparkSession, sql: str, report: Report) -> list[Row] | None:
    """The rows of a statement, or None if it failed: then nothing was changed, and the next run tries again."""
    try:
        return list(spark.sql(sql).collect())
    except (Py4JError, PySparkException) as error:
        said = str(error).splitlines()[0]
        log.warning("%s: %s", sql, said)
        report.failed.append(f"{sql}: {said}")
        return None


def main(argv: list[str] | None = None) -> int:
    """``maintenance [--orphans]``. Prints the report as JSON."""
    parser = argparse.ArgumentParser(prog="maintenance", description=__doc__)
    parser.add_argument(
        "--orphans", nargs="?", const="true", default="false", choices=("true", "false"),
        help="look for orphan files now, not only once a day",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        print(json.dumps(asdict(maintain(spark, settings, arguments.orphans == "true"))))
        return 0

    return job(settings, "maintenance", {"spark.sql.shuffle.partitions": "4"}, work)


if __name__ == "__main__":
    sys.exit(main())
