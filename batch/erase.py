"""Erase: what is kept for good, without a guest. ``spark-submit batch/erase.py --erasure N``.

To be run once everything that is served has taken the erasure in. It retires whatever has not, with its rows, tags,
snapshots and files; it rewrites raw objects and columnar archive, in which the guest's records keep their place and
time; and it forgets old snapshots at once. Killed at any point, it is run again; a second call finds nothing left.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batch.backlog import archived_vector
from batch.backup import backup_locked
from batch.batch_table import EMPTY_TAG, taken_in
from batch.ingest import BATCH_CONF
from batch.maintenance import Report as Upkeep
from batch.maintenance import delete_speed_rows, drop_refs, expire_now, refs_of, tables_of
from batch.plan import RESERVED, SERVED_LOCATION
from batch.restore import keeping
from batch.retention import retire, retire_before
from changelog.archive.columnar import CONTENT, archive_name, of_guests
from changelog.archive.rewrite import rewrite
from changelog.classify import ERASED
from changelog.erased import Erased
from changelog.erasures import recorded, served_number
from runtime import faults, ops
from runtime.errors import ConflictError, TerminalError
from runtime.ops import Connection
from runtime.settings import ENTITIES, Settings, topic_of
from runtime.spark import CATALOG, deleting, job

log = logging.getLogger("erase")

ATTEMPTS = 8
"""So often one change of one table is tried."""

TIMES = 3
"""So often all of it is, where a writer was in the way of something."""


@dataclass
class Report:
    """What was done: pairs and runs retired; records rewritten in raw objects and in the columnar archive, by topic;
    ``upkeep``: rows, tags, snapshots and files that only those needed."""

    retired: int = 0
    objects: dict[str, int] = field(default_factory=dict)
    archive: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    upkeep: Upkeep = field(default_factory=Upkeep)
    seconds: float = 0.0


def erase(spark: SparkSession, settings: Settings, erasure: int) -> Report:
    """Do all of it for one erasure. Raises TerminalError if there is none that is still under way, or what is served
    has not taken it in; ConflictError if others kept writing first: run it again."""
    began = time.monotonic()
    report = Report()
    removing = deleting(spark, settings)
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT ref FROM erasures WHERE erasure = %s", (erasure,)).fetchone()
        if row is None or row["ref"] is None:
            raise TerminalError(f"erasure {erasure} is finished, or there is none: anabranch erasures")
        if served_number(connection) < erasure:
            raise TerminalError(f"what is served still counts the guest of erasure {erasure}: anabranch erase-guest")
        erased = recorded(settings, connection, erasure)
        with ops.publication_lock(connection):
            refs = {table: refs_of(spark, table) for table in tables_of(spark, "batch")}
            report.retired = retire_before(connection, erasure)
            kept = retire(connection, settings.batch.keep_publications, settings.batch.keep_runs_hours)
            backup_locked(settings)  # before anything that the one before speaks of is deleted
            faults.point("erase.retired")
            delete_speed_rows(spark, kept, report.upkeep)
            drop_refs(spark, refs, kept, report.upkeep)
            _empty_heads(spark)
        _drop_locations(removing, connection, erasure, report)
        faults.point("erase.before-objects")
        report.objects = rewrite(settings, erased, archived_vector(connection), *keeping(settings, connection))
        faults.point("erase.objects-rewritten")
        for entity in ENTITIES:
            report.archive[topic_of(entity)] = _rewrite(spark, entity, erased)
            faults.point("erase.between-tables")
    for namespace in ("archive", "batch", "speed"):
        for table in tables_of(spark, namespace):
            if namespace != "batch":  # what lies in branches is not put together
                _again(lambda t=table: spark.sql(_manifests(t)).collect())  # type: ignore[misc]  # the default binds it
            expire_now(removing, table, report.upkeep)
    if report.upkeep.failed:
        raise ConflictError(f"a writer was in the way; run this again: {'; '.join(report.upkeep.failed)}")
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _rewrite(spark: SparkSession, entity: str, erased: Erased) -> int:
    """Make ``erased`` of the guests' rows in one table. Returns how many they were."""
    name = archive_name(entity)
    if not spark.catalog.tableExists(name):
        return 0
    condition = of_guests(spark.table(name), entity, erased)
    number = spark.table(name).where(condition).count()
    if number:
        content = ", ".join(f"`{column}` = NULL" for column in CONTENT)
        _again(lambda: spark.sql(f"UPDATE {name} SET kind = '{ERASED}', {content} WHERE {condition}").collect())
    return number


def _again(change: Callable[[], object]) -> None:
    """Make a change of a table; again where another commit came between."""
    for attempt in range(ATTEMPTS):
        try:
            change()
            return
        except (Py4JJavaError, PySparkException) as error:
            ours = "ValidationException" in str(error) or "CommitFailedException" in str(error)
            if not ours or attempt + 1 == ATTEMPTS:
                raise
            time.sleep(0.2 * attempt)


def _manifests(table: str) -> str:
    """Manifests keep for a while what was in files that are deleted: the bounds of their columns."""
    return f"CALL {CATALOG}.system.rewrite_manifests(table => '{table}', use_caching => false)"


def _empty_heads(spark: SparkSession) -> None:
    """The head of a batch table means nothing; what a run wrote there as its branch was taken away goes with this."""
    for table in tables_of(spark, "batch"):
        at = {row["name"]: row["snapshot_id"] for row in refs_of(spark, table)}
        if at.get("main") != at.get(EMPTY_TAG) and EMPTY_TAG in at:
            spark.sql(f"CALL {CATALOG}.system.set_current_snapshot(table => '{table}', ref => '{EMPTY_TAG}')")


def _drop_locations(spark: SparkSession, connection: Connection, erasure: int, report: Report) -> None:
    """Tables of replays and experiments that have not taken the erasure in, and what killed comparisons left."""
    rows = connection.execute("SELECT DISTINCT location FROM runs WHERE location <> %s", (SERVED_LOCATION,)).fetchall()
    for namespace in sorted({"scratch", *(row["location"] for row in rows)} - (set(RESERVED) - {"scratch"})):
        for table in tables_of(spark, namespace):
            if namespace != "scratch" and not has_before(spark, table, erasure):
                continue
            try:
                spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")
                report.dropped.append(table)
            except (Py4JError, PySparkException) as error:
                report.upkeep.failed.append(f"{table}: {str(error).splitlines()[0]}")


def has_before(spark: SparkSession, table: str, erasure: int) -> bool:
    """Whether a table has anything that was folded without having taken the erasure in, as its snapshots say."""
    refs = refs_of(spark, table)
    empty = {row["snapshot_id"] for row in refs if row["name"] == EMPTY_TAG}
    return any(taken_in(spark, table, snapshot) < erasure for snapshot in {row["snapshot_id"] for row in refs} - empty)


def main(argv: list[str] | None = None) -> int:
    """``erase --erasure N``. Prints the report as JSON."""
    parser = argparse.ArgumentParser(prog="erase", description=__doc__)
    parser.add_argument("--erasure", type=int, required=True)
    arguments = parser.parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        for attempt in range(TIMES):
            try:
                print(json.dumps(asdict(erase(spark, settings, arguments.erasure))))
                break
            except ConflictError as error:
                if attempt + 1 == TIMES:
                    raise
                log.info("%s", error)
        return 0

    return job(settings, "erase", BATCH_CONF, work)


if __name__ == "__main__":
    sys.exit(main())
