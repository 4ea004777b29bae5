"""Verify: log, archive and every merged view, compared at one journaled cut. Exit status 1 on any difference.

The cut is the end of the last epoch of what is served. The log up to there is read anew, from Kafka and where Kafka no
longer has it from the raw objects; duplicates are marked over all of it; it is folded from nothing; and Trino compares
the result, row by row and in both directions, with the SQL that is served, limited to the same cut. The archive is
compared row by row with the same log. Nothing is locked: the platform goes on meanwhile.
"""

import argparse
import json
import logging
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from changelog.archive.columnar import ENTITY_COLUMNS, as_archived, as_type, below, without
from changelog.erased import Erased
from changelog.erasures import recorded
from changelog.positions import Vector, to_json
from changelog.typed import entity_columns, entity_type, in_snake_case
from runtime import ops, trino
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, Settings, topic_of
from runtime.spark import CATALOG, deleting, job
from serving import sql
from serving.log import log_records
from serving.publication import views_say
from serving.published import Served, current
from serving.sql import Pin
from views.algebra import Contribution, View, deferring, written_by
from views.fold import Fold, weighted
from views.matching import folding, match_rows, matched, matching, progress_of, sides
from views.registry import view_named

log = logging.getLogger("verify")

WHOLE = (
    "kafka_partition", "kafka_offset", "append_time", "key", "kind", "service_name", "identifier", "reason", "value",
)  # fmt: skip

COUNTED = ("records", "changes", "bad", "tombstones", "erased")
"""What the journal counts; the rest of the records are duplicates."""

SHOWN = 5
"""Examples shown of each difference."""


@dataclass
class Report:
    """``differences``: a line for each thing that is not as it must be; empty means exact. ``cut``: where.
    ``deferred``: of each view, how many changes its speed side leaves to the next batch run."""

    cut: dict[str, dict[str, int]] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


def verify(spark: SparkSession, settings: Settings) -> Report:
    """Compare everything at the newest journaled cut. Reads only, but for a scratch table that it drops again."""
    with ops.connect(settings) as connection, ops.publication_lock(connection):  # no publication between the two
        served = current(connection)
        said = views_say(trino.connect(settings)) if served else {}
        rows = connection.execute("SELECT * FROM generations WHERE pipeline = 'main'").fetchall()
        generations = {row["generation"]: row for row in rows}
        erased = {
            number: recorded(settings, connection, generations[number]["erasures"])
            for number in {view.generation for view in served}
        }
    if not served:
        raise TerminalError("nothing is published yet: anabranch up")
    report = Report()
    for view in served:
        if said.get(view.view) != view.publication:
            report.differences.append(
                f"serving.{view.view} carries publication {said.get(view.view)}, the record says {view.publication}"
            )
    for generation in sorted({view.generation for view in served}):
        views = [view for view in served if view.generation == generation]
        first = min(views, key=lambda view: view.epoch)
        until, cut = _journal(spark, first, report)
        report.cut = to_json(cut)
        records = log_records(spark, settings, cut, erased[generation]).persist()
        _kinds(spark, records, first, until, report)
        _archive(spark, records, cut, erased[generation], report)
        left = Left(generations[generation]["batch_services"], views)
        _left(spark, records, left, until, report)
        _views(spark, settings, records, cut, views, left, until, report)
        records.unpersist()
    return report


def _journal(spark: SparkSession, view: Served, report: Report) -> tuple[int, Vector]:
    """The end of the journal: (first epoch not in it, its vector). Notes gaps between epochs."""
    journal = (
        spark.table(f"{CATALOG}.speed.main")
        .where(F.expr(f"generation = {view.generation} AND view = 'journal' AND epoch >= {view.epoch}"))
        .select("epoch", "journal.*")
        .orderBy("epoch")
        .collect()
    )
    reached: Vector = {topic: dict(partitions) for topic, partitions in view.vector.items()}
    until = view.epoch
    for row in journal:
        topic, partition = row["topic"], row["kafka_partition"]
        if row["start_offset"] != reached[topic][partition]:
            report.differences.append(
                f"journal: epoch {row['epoch']} of {topic}/{partition} starts at {row['start_offset']}, the one before "
                f"ended at {reached[topic][partition]}"
            )
        if row["epoch"] > until:
            report.differences.append(f"journal: epochs {until} to {row['epoch'] - 1} are missing")
        reached[topic][partition] = row["end_offset"]
        until = max(until, row["epoch"] + 1) if row["epoch"] >= until else until
    return until, reached


def _kinds(spark: SparkSession, records: DataFrame, view: Served, until: int, report: Report) -> None:
    """Records by kind: the journal from the boundary on must count what the log holds there."""
    counted = {row["kind"]: row["count"] for row in records.groupBy("kind").count().collect()}
    report.records = counted
    below = " OR ".join(
        f"(topic = '{topic}' AND kafka_partition = {p} AND kafka_offset >= {offset})"
        for topic, partitions in view.vector.items()
        for p, offset in partitions.items()
    )
    in_log = {row["kind"]: row["count"] for row in records.where(below).groupBy("kind").count().collect()}
    row = (
        spark.table(f"{CATALOG}.speed.main")
        .where(
            F.expr(f"generation = {view.generation} AND view = 'journal' AND epoch >= {view.epoch} AND epoch < {until}")
        )
        .select("journal.*")
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTED))
        .collect()[0]
    )
    speed = {"change": row["changes"], "bad": row["bad"], "tombstone": row["tombstones"], "erased": row["erased"]}
    speed["duplicate"] = row["records"] - sum(speed.values())
    for kind, number in speed.items():
        if number != in_log.get(kind, 0):
            report.differences.append(
                f"speed layer: counted {number} of kind {kind} from the boundary on, "
                f"the log holds {in_log.get(kind, 0)}"
                + (
                    " (copies farther apart than the horizon are taken out by the next batch run)"
                    if kind == "change"
                    else ""
                )
            )


class Left:
    """What views leave to the batch layer: the changes of ``services`` from their boundary on."""

    def __init__(self, services: Sequence[str], served: Sequence[Served]) -> None:
        self.services = services
        self.by = {one.view: one for one in served if services and view_named(one.view).defers}

    def contribution(self, view: View) -> Contribution:
        """What a view folds of the whole log below a cut."""
        if view.name not in self.by:
            return view.contribution
        return deferring(view.contribution, self.services, unless=f"({below(self.by[view.name].vector)})")


def _left(spark: SparkSession, records: DataFrame, left: Left, until: int, report: Report) -> None:
    """How much views leave to the batch layer: the speed layer must have counted what the log holds."""
    for name, at in left.by.items():
        topic = topic_of(view_named(name).entity)
        theirs = records.where(f"topic = '{topic}' AND kind = 'change' AND {written_by(left.services)}")
        in_log = report.deferred[f"serving.{name}"] = theirs.where(f"NOT ({below(at.vector)})").count()
        table = spark.table(f"{CATALOG}.speed.main").where(
            f"generation = {at.generation} AND view = 'deferred' AND epoch >= {at.epoch} AND epoch < {until} AND "
            f"deferred.topic = '{topic}'"
        )
        counted = table.agg(F.coalesce(F.sum("deferred.records"), F.lit(0))).collect()[0][0]
        if counted != in_log:
            report.differences.append(
                f"serving.{name}: the speed layer left {counted} changes to the next batch run, the log holds {in_log} "
                "(copies farther apart than the horizon are taken out by it)"
            )


def _archive(spark: SparkSession, records: DataFrame, cut: Vector, erased: Erased, report: Report) -> None:
    """Every archived offset below the cut against the log, and the other way round up to the archived position."""
    there = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {CATALOG}.archive").collect()} if _has(
        spark, "archive"
    ) else set()  # fmt: skip
    for entity in ENTITIES:
        if entity not in there:
            continue
        topic = topic_of(entity)
        table = spark.table(f"{CATALOG}.archive.{entity}")
        limit = " OR ".join(f"(kafka_partition = {p} AND kafka_offset < {end})" for p, end in cut[topic].items())
        ends = {row[0]: row[1] + 1 for row in table.groupBy("kafka_partition").agg(F.max("last_offset")).collect()}
        doubled = table.groupBy("kafka_partition", "kafka_offset").count().where("count > 1").count()
        if doubled:
            report.differences.append(f"archive.{entity}: {doubled} offsets are there more than once")
        archived = without(table.where(limit).where("kind <> 'empty'"), entity, erased)
        expected_in = " OR ".join(
            f"(kafka_partition = {p} AND kafka_offset < {min(end, ends.get(p, 0))})" for p, end in cut[topic].items()
        )
        in_log = records.where(F.col("topic") == topic).where(expected_in)
        wanted = in_snake_case(entity_type(entity))
        typed = in_log.select(*WHOLE, *(entity_columns(entity, name).alias(name) for name in ENTITY_COLUMNS))
        taken_up = typed.select(*WHOLE, *(as_archived(spark, entity, name).alias(name) for name in ENTITY_COLUMNS))
        left = taken_up.select("kafka_partition", "kafka_offset", _digest().alias("log_hash"))
        archived = archived.select(
            *WHOLE, *(as_type(F.col(name), table.schema[name].dataType, wanted).alias(name) for name in ENTITY_COLUMNS)
        )
        right = archived.select("kafka_partition", "kafka_offset", _digest().alias("archive_hash"))
        both = left.join(right, ["kafka_partition", "kafka_offset"], "full_outer")
        wrong = both.where("NOT (log_hash <=> archive_hash)").persist()
        number = wrong.count()
        report.compared[f"archive.{entity}"] = archived.count()
        if number:
            shown = [
                f"{row['kafka_partition']}/{row['kafka_offset']} "
                + (
                    "missing"
                    if row["archive_hash"] is None
                    else "not in the log"
                    if row["log_hash"] is None
                    else "altered"
                )
                for row in wrong.orderBy("kafka_partition", "kafka_offset").limit(SHOWN).collect()
            ]
            report.differences.append(f"archive.{entity}: {number} offsets differ from the log: {', '.join(shown)}")
        wrong.unpersist()


def _digest() -> Column:
    """A hash of a record whole. Of its text, because hashing columns would pass over which of them are null."""
    return F.xxhash64(F.to_json(F.struct(*WHOLE, "current", "original"), {"ignoreNullFields": "false"}))


def _has(spark: SparkSession, namespace: str) -> bool:
    return namespace in {row[0] for row in spark.sql(f"SHOW NAMESPACES IN {CATALOG}").collect()}


def _views(
    spark: SparkSession,
    settings: Settings,
    records: DataFrame,
    cut: Vector,
    served: list[Served],
    left: Left,
    until: int,
    report: Report,
) -> None:
    """Fold the log from nothing and let Trino compare it with what is served, both ways. What a view defers is left out
    of its fold from its boundary on."""
    views = [view_named(view.view) for view in served]
    nothing: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in cut.items()}
    folds = Fold(left.contribution(view) for view in folding(views))
    anew = folds.increments(weighted(records, ["service_name"]))
    if joins := matching(views):
        found = matched(sides(records, joins), joins, nothing, {}, progress_of(records, "true")[0])
        matches = Fold(view.contribution for view in joins).increments(match_rows(found, joins))
        anew = anew.unionByName(matches, allowMissingColumns=True)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.scratch")
    table = f"{CATALOG}.scratch.verify_{uuid.uuid4().hex[:8]}"

    def compared(view: View, at: Served) -> tuple[int, list[str]]:
        return _compared(settings, view, table, Pin(at.snapshot, at.generation, at.epoch, until))

    try:
        anew.writeTo(table).using("iceberg").create()
        with ThreadPoolExecutor(trino.AT_ONCE) as pool:
            for view, (rows, differences) in zip(views, pool.map(compared, views, served), strict=True):
                report.compared[f"serving.{view.name}"] = rows
                report.differences += differences
    finally:
        deleting(spark, settings).sql(f"DROP TABLE IF EXISTS {table} PURGE")


def _compared(settings: Settings, view: View, table: str, pin: Pin) -> tuple[int, list[str]]:
    """How many rows a view serves, and what is not as in ``table``, where the log is folded anew."""
    lake = trino.connect(settings)
    names = [read.name for read in view.reads]
    columns = ", ".join(f"{expression} AS {name}" for name, expression in sql.comparable(view).items())
    expected = view.read_sql(view.states_sql([sql.struct_of(view, table)]))
    grouped = (
        f"SELECT {', '.join(names)}, sum(wanted) AS wanted, sum(there) AS there FROM (SELECT {columns}, 1 AS wanted, "
        f"0 AS there FROM ({expected}) UNION ALL SELECT {columns}, 0, 1 FROM ({sql.merged(view, pin)})) GROUP BY "
        f"{', '.join(names)}"
    )
    _, [[there, missing, unexpected]] = trino.execute(
        lake,
        "SELECT coalesce(sum(there), 0), coalesce(sum(greatest(wanted - there, 0)), 0), "
        f"coalesce(sum(greatest(there - wanted, 0)), 0) FROM ({grouped})",
    )
    differences = []
    for what, number, condition in (
        ("missing or wrong", missing, "wanted > there"),
        ("unexpected", unexpected, "there > wanted"),
    ):
        if number:
            _, shown = trino.execute(
                lake, f"SELECT {', '.join(names)} FROM ({grouped}) WHERE {condition} LIMIT {SHOWN}"
            )
            examples = (", ".join(f"{n}={v}" for n, v in zip(names, row, strict=True)) for row in shown)
            differences.append(f"serving.{view.name}: {number} rows {what}: {'; '.join(examples)}")
    return int(there), differences


def main(argv: list[str] | None = None) -> int:
    """``verify``: prints the report as JSON; 1 on any difference."""
    argparse.ArgumentParser(prog="verify", description=__doc__).parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        report = verify(spark, settings)
        print(json.dumps(asdict(report)))
        return 1 if report.differences else 0

    return job(settings, "verify", {"spark.sql.shuffle.partitions": "4"}, work, failed=2)


if __name__ == "__main__":
    sys.exit(main())
