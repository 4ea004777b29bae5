"""Ingest: raw objects → ``archive.<entity>``. At-least-once objects become exactly-once records.

``spark-submit batch/ingest.py`` or ``anabranch batch``. Each table advances by one commit, which replaces everything at
or after the position that was read and is validated against the snapshot it was read from: of two ingests at once, one
is refused and reads again. Killed at any point, the next run goes on from what the tables hold.
"""

import argparse
import json
import logging
import sys
import time
from dataclasses import asdict
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from batch.archive_table import ends, ensure_archives, positions, snapshots_now
from batch.holes import Stretches, ends_of, find, look_up, lost, overlapping, stretches_of, tails, unproven, withheld
from batch.report import Report, complain, note
from batch.restore import keeping, salvage
from changelog.archive.columnar import archive_name
from changelog.archive.objects import ABOUT, BROKEN, NAMING, OBJECT, RANGE, RawObject, read_objects
from changelog.archive.position import stored_offsets
from changelog.archive.ranges import EMPTY, Hole
from changelog.archive.rewrite import rewrite
from changelog.archive.store import ArchiveStore
from changelog.classify import CHANGE, DUPLICATE, IDENTITY
from changelog.erased import Erased
from changelog.erasures import served
from changelog.positions import Vector, covers, to_json
from changelog.topics import check_topics, end_offsets, start_offsets, topic_ids
from changelog.typed import entity_columns, typed
from runtime import faults
from runtime.errors import ConflictError
from runtime.ops import Connection, connect
from runtime.settings import ENTITIES, Settings, topic_of
from runtime.spark import job

log = logging.getLogger("ingest")

BROADCAST_DUPLICATES = 1_000_000
ATTEMPTS = 5

BATCH_CONF = {"spark.sql.shuffle.partitions": "4", "spark.driver.maxResultSize": "1g"}


def ingest(spark: SparkSession, settings: Settings, accept: tuple[Hole, ...] = ()) -> Report:
    """Bring every ``archive.<entity>`` up to what the objects hold. A second call with nothing new writes nothing.

    ``accept``: ranges that the operator declares lost, which become empty ranges. Raises ContractError, ArchiveError,
    or ConflictError if other ingests kept coming first.
    """
    began = time.monotonic()
    check_topics(settings)
    ids = topic_ids(settings)
    ensure_archives(spark, ids, settings.kafka.partitions)
    pending, report = set(ENTITIES), Report()
    with connect(settings) as ops:
        for attempt in range(ATTEMPTS):
            try:
                pending = _pass(spark, settings, ops, pending, accept, report)
            except PythonException as error:  # a worker's error: what it raised is in the text alone
                if "runtime.errors.TransientError" not in str(error) or attempt + 1 == ATTEMPTS:
                    raise
                log.info("an object changed while it was read; listing again")
                continue
            if not pending:
                break
            log.info("another ingest came first for %s; reading again (%d)", ", ".join(sorted(pending)), attempt + 1)
        else:
            raise ConflictError("other ingests kept coming first; run this again")
        report.archived = to_json(_remember_positions(spark, settings, ops))
        report.seconds = round(time.monotonic() - began, 3)
        note(ops, report)
    return report


def _pass(
    spark: SparkSession,
    settings: Settings,
    ops: Connection,
    entities: set[str],
    accept: tuple[Hole, ...],
    report: Report,
) -> set[str]:
    """One pass over the objects of ``entities``. Returns those whose commit was refused because somebody was first."""
    snapshots = {entity: snapshot for entity, snapshot in snapshots_now(spark).items() if entity in entities}
    position = positions(spark, snapshots, settings.kafka.partitions)
    committed = stored_offsets(settings)  # before the listing: that has what is committed by now
    stored = {topic: partitions for topic, partitions in committed.items() if topic in position}
    objects, gone = _listed(settings, ops, position)
    if not objects and not gone and covers(position, stored) and not tails(settings, position, end_offsets(settings)):
        return set()
    log.info("reading %d objects", len(objects))
    erased = served(settings, ops)
    read = read_objects(spark, settings.s3, objects, position, erased).persist()
    try:
        about = read.where(F.col("kind").isin(*ABOUT)).drop("key", "value").collect()
        found: Stretches = {}
        for row in about:
            if row["kind"] == RANGE:
                stretch = (row["kafka_offset"], int(row["identifier"]))
                found.setdefault((row["topic"], row["kafka_partition"]), []).append(stretch)
        log.info("looking for holes and duplicates")
        records = read.where(~F.col("kind").isin(*ABOUT)).drop("object", "etag")
        for place, end in withheld(settings, ends_of(found, position), stored):
            found.setdefault(place, []).append((end, end - 1))  # nothing, behind a hole
        records, empty, until = _without_holes(
            spark, settings, records, found, position, stored, accept, report, erased
        )
        records = records.where(_below(until))
        duplicates = _duplicates(spark, snapshots, records).persist()
        try:
            marked = _marked(records, duplicates)
            written = sorted({topic for topic, _ in found})
            refused = set()
            for entity in sorted(entities):
                topic = topic_of(entity)
                ranges = [hole for hole in empty if hole.topic == topic]
                if topic not in written and not ranges:
                    continue
                log.info("writing %s", archive_name(entity))
                if _commit(spark, entity, snapshots[entity], position[topic], marked, ranges):
                    faults.point("ingest.after-commit")
                else:
                    refused.add(entity)
            _count(marked, empty, {topic_of(entity) for entity in entities - refused}, report)
        finally:
            duplicates.unpersist()
        _remember_objects(ops, about, report)
        _mend_objects(settings, ops, about, gone, position, report)
        report.objects += sum(1 for row in about if row["kind"] in (OBJECT, BROKEN))
        return refused
    finally:
        read.unpersist()


def _listed(settings: Settings, ops: Connection, position: Vector) -> tuple[list[RawObject], dict[str, int]]:
    """Objects that may hold offsets at or after the position, and those that are gone, with their number of records.
    One seen before, byte for byte (etag), is known by its last offset; nothing is concluded from a name."""
    known = {row["object"]: row for row in ops.execute("SELECT * FROM archive_objects").fetchall()}
    store = ArchiveStore(settings.s3)
    found: list[RawObject] = []
    gone: dict[str, int] = {}
    for topic, partitions in position.items():
        mine = f"{store.prefix}/{topic}/"
        gone |= {key: row["records"] for key, row in known.items() if key.startswith(mine)}
        for item in store.list_objects(topic):
            gone.pop(item.key, None)
            seen = known.get(item.key)
            if item.partition not in partitions:
                continue
            if seen and seen["etag"] == item.etag and seen["last_offset"] < partitions[item.partition]:
                continue
            found.append(RawObject(topic, item.partition, item.key, item.etag))
    return found, gone


def _without_holes(
    spark: SparkSession,
    settings: Settings,
    records: DataFrame,
    found: Stretches,
    position: Vector,
    stored: Vector,
    accept: tuple[Hole, ...],
    report: Report,
    erased: Erased,
) -> tuple[DataFrame, list[Hole], Vector]:
    """Records with their holes mended, the ranges proven empty, the tails too, and where each partition must stop."""
    until: Vector = {topic: dict.fromkeys(partitions, sys.maxsize) for topic, partitions in position.items()}
    holes = find(found, position)
    empty = tails(settings, ends_of(found, position), end_offsets(settings))
    if not holes:
        return records, empty, until
    starts = start_offsets(settings)
    whole = {place: list(stretches) for place, stretches in found.items()}
    mended = look_up(spark, settings, holes, starts, stored, erased)
    if mended is not None:
        mended = mended.persist()
        report.mended += mended.count()
        records = records.unionByName(mended)
        for place, stretches in stretches_of(mended).items():
            whole[place] += stretches
    missing: dict[tuple[str, int], list[Hole]] = {}
    for one in unproven(settings, lost(holes, starts)):
        missing.setdefault((one.topic, one.partition), []).append(one)
    for hole in find(whole, position):
        gone = overlapping(missing.get((hole.topic, hole.partition), []), hole)
        gone = [m for m in gone if not any(_within(m, hole, a) for a in accept)]
        if gone:
            stop = until[hole.topic]
            stop[hole.partition] = min(stop[hole.partition], max(hole.first, gone[0].first))
            report.lost.append(str(Hole(hole.topic, hole.partition, max(hole.first, gone[0].first), gone[-1].last)))
        else:
            empty.append(hole)
    return records, [hole for hole in empty if hole.last < until[hole.topic][hole.partition]], until


def _within(missing: Hole, hole: Hole, accepted: Hole) -> bool:
    same = (accepted.topic, accepted.partition) == (hole.topic, hole.partition)
    first, last = max(missing.first, hole.first), min(missing.last, hole.last)
    return same and accepted.first <= first and accepted.last >= last


def _below(until: Vector) -> str:
    limits = [
        f"NOT (topic = '{topic}' AND kafka_partition = {partition} AND kafka_offset >= {end})"
        for topic, partitions in until.items()
        for partition, end in partitions.items()
        if end != sys.maxsize
    ]
    return " AND ".join(limits) or "true"


def _duplicates(spark: SparkSession, snapshots: dict[str, int], records: DataFrame) -> DataFrame:
    """Positions of the changes whose identity came before, here or in the archive; the lowest offset is no duplicate.

    Columns: topic, kafka_partition, kafka_offset. Works on identities alone, not on whole records.
    """
    new = records.where(F.col("kind") == CHANGE).select("kafka_partition", "kafka_offset", *IDENTITY)
    copies = Window.partitionBy(*IDENTITY).orderBy("kafka_offset")
    numbered = new.withColumn("copy", F.row_number().over(copies))
    archived = [
        spark.read.option("versionAsOf", snapshot)
        .table(archive_name(entity))
        .where(F.col("kind") == CHANGE)
        .select(F.lit(topic_of(entity)).alias("topic"), "key", "service_name", "identifier")
        for entity, snapshot in snapshots.items()
    ]
    before = reduce(DataFrame.unionByName, archived)
    again = numbered.where("copy = 1").join(before, IDENTITY, "left_semi")
    position = ["topic", "kafka_partition", "kafka_offset"]
    return numbered.where("copy > 1").select(*position).union(again.select(*position))


def _marked(records: DataFrame, duplicates: DataFrame) -> DataFrame:
    """``records`` with the kind ``duplicate`` at the positions of ``duplicates``. The fold reads the mark."""
    number = duplicates.count()
    if number == 0:
        return records
    marks = duplicates.withColumn("copy", F.lit(True))
    if number <= BROADCAST_DUPLICATES:
        marks = F.broadcast(marks)
    kind = F.when(F.col("copy"), DUPLICATE).otherwise(F.col("kind"))
    return (
        records.join(marks, ["topic", "kafka_partition", "kafka_offset"], "left").withColumn("kind", kind).drop("copy")
    )


def _commit(
    spark: SparkSession, entity: str, snapshot: int, position: dict[int, int], marked: DataFrame, empty: list[Hole]
) -> bool:
    """Replace everything at or after ``position`` by the new rows. False if another commit came first."""
    topic, name = topic_of(entity), archive_name(entity)
    rows = typed(marked.where(F.col("topic") == topic)).select(
        "kafka_partition",
        "kafka_offset",
        F.col("kafka_offset").alias("last_offset"),
        "kind",
        "append_time",
        "key",
        "service_name",
        "identifier",
        "reason",
        F.when(F.col("kind") == CHANGE, entity_columns(entity, "current")).alias("current"),
        F.when(F.col("kind") == CHANGE, entity_columns(entity, "original")).alias("original"),
        F.when(F.col("kind") != CHANGE, F.col("value")).alias("value"),
    )
    if empty:
        ranges = [(hole.partition, hole.first, hole.last, EMPTY) for hole in empty]
        columns = "kafka_partition int, kafka_offset bigint, last_offset bigint, kind string"
        rows = rows.unionByName(spark.createDataFrame(ranges, columns).coalesce(1), allowMissingColumns=True)
    condition = " OR ".join(f"(kafka_partition = {p} AND kafka_offset >= {start})" for p, start in position.items())
    faults.point("ingest.before-commit")
    try:
        (
            rows.writeTo(name)
            .option("fanout-enabled", "true")
            .option("isolation-level", "serializable")
            .option("validate-from-snapshot-id", str(snapshot))
            .overwrite(F.expr(condition))
        )
    except Py4JJavaError as error:
        if "ValidationException" in str(error) or "CommitFailedException" in str(error):
            return False
        raise
    return True


def _count(marked: DataFrame, empty: list[Hole], committed: set[str], report: Report) -> None:
    for row in marked.groupBy("topic", "kind").count().collect():
        if row["topic"] in committed:
            report.records[row["kind"]] = report.records.get(row["kind"], 0) + row["count"]
    ranges = sum(1 for hole in empty if hole.topic in committed)
    if ranges:
        report.records[EMPTY] = report.records.get(EMPTY, 0) + ranges


def _remember_objects(ops: Connection, about: list[Row], report: Report) -> None:
    for row in about:
        if row["kind"] == BROKEN:
            report.alarms.append(row["reason"])
        if row["kind"] != OBJECT:
            continue
        ops.execute(
            "INSERT INTO archive_objects (object, etag, last_offset, records) VALUES (%s, %s, %s, %s) ON CONFLICT "
            "(object) DO UPDATE SET (etag, last_offset, records, read_at) = "
            "(excluded.etag, excluded.last_offset, excluded.records, now())",
            (row["object"], row["etag"], row["kafka_offset"], int(row["identifier"])),
        )


def _mend_objects(
    settings: Settings, ops: Connection, about: list[Row], gone: dict[str, int], position: Vector, report: Report
) -> None:
    """What damaged objects held, and those that are gone, is put into objects again; and who was erased leaves those
    that brought him back: restored from a copy of before, or stored while what is served was about to leave him out."""
    if lost := [*gone, *(row["object"] for row in about if row["kind"] == BROKEN)]:
        log.info("putting into objects again what %d have lost", len(lost))
        saved = salvage(settings, ops, lost)
        for key, records in gone.items():
            if key not in saved:
                report.alarms.append(f"{key} is gone; the next ingest tries again to put its records into objects")
                continue
            if (left := saved[key]) is not None and left < records:
                report.alarms.append(f"{key} is gone, and of its {records} records {left} are left")
            ops.execute("DELETE FROM archive_objects WHERE object = %s", (key,))
    if naming := {row["object"] for row in about if row["kind"] == NAMING}:
        log.info("taking erased guests out of %d objects", len(naming))
        rewrite(settings, served(settings, ops), position, *keeping(settings, ops), only=naming)


def _remember_positions(spark: SparkSession, settings: Settings, ops: Connection) -> Vector:
    """Note the archived positions in the operations database, for status and for the start of generations."""
    vector: Vector = {topic: dict.fromkeys(range(settings.kafka.partitions), 0) for topic in settings.topics}
    for row in ends(spark, snapshots_now(spark)):
        topic, partition, position = topic_of(row["entity"]), row["partition"], row["last"] + 1
        vector[topic][partition] = position
        ops.execute(
            "INSERT INTO archived (topic, kafka_partition, kafka_offset, append_time) VALUES (%s, %s, %s, "
            "%s::timestamp AT TIME ZONE 'UTC') ON CONFLICT (topic, kafka_partition) DO UPDATE SET "
            "(kafka_offset, append_time, updated_at) = (excluded.kafka_offset, excluded.append_time, now())",
            (topic, partition, position, row["append_time"]),
        )
    return vector


def main(argv: list[str] | None = None) -> int:
    """``ingest [--accept-hole TOPIC/PARTITION/FIRST-LAST …] [--complain-later]``. Prints the report as JSON.

    1 on a hole or an alarm, unless somebody else reads the report and complains.
    """
    parser = argparse.ArgumentParser(prog="ingest", description=__doc__)
    parser.add_argument("--complain-later", action="store_true", help="exit with 0 although objects are missing")
    parser.add_argument("--accept-hole", action="append", default=[], metavar="TOPIC/PARTITION/FIRST-LAST")
    arguments = parser.parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        report = ingest(spark, settings, tuple(Hole.parse(text) for text in arguments.accept_hole))
        print(json.dumps(asdict(report)))
        if not arguments.complain_later:
            complain(report)
        return 0

    return job(settings, "ingest", BATCH_CONF, work)


if __name__ == "__main__":
    sys.exit(main())
