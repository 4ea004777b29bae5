"""Build: archive → ``batch.<view>``, for all views of a pipeline in one scan.

``spark-submit batch/build.py [--full] [--view V …]`` or ``anabranch batch``. Folds exactly the archived changes below
the start of an epoch: from nothing (full), or only those since what is served (incremental). It writes on branches that
nobody reads, tags them, and notes the run; publication is another step. Killed at any point it leaves nothing that
counts; a second call with the same run id makes the branches anew.

With ``--location`` it folds into tables of that name, which are never served: for new code, an experiment, a replay
from any position (``--since``).
"""

import argparse
import json
import logging
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batch.archive_table import changes, first_after, positions, snapshots_now
from batch.batch_table import batch_name, ensure_batch_table, folded_by, forget_run, slices, taken_in, write_run
from batch.boundary import Boundary, choose
from batch.ingest import BATCH_CONF
from batch.matches import matches_between
from batch.plan import SERVED_LOCATION, Plan, add_options, plan_of
from batch.raw import raw_changes
from changelog.erasures import recorded, served_number
from changelog.positions import Vector, covers, from_json, to_json
from runtime import faults
from runtime.errors import ConflictError, TerminalError, TransientError
from runtime.ops import Connection, connect
from runtime.settings import Settings, topic_of
from runtime.spark import deleting, job
from runtime.version import code_version
from views.algebra import View
from views.fold import Fold, combine, weighted
from views.matching import folding, match_rows, matching
from views.registry import views_of

log = logging.getLogger("build")

COMBINE_AFTER = 24
"""After so many appended slices an incremental run folds them together, so that a query reads few rows."""


@dataclass(frozen=True)
class Base:
    """What an incremental run adds to: a served snapshot and the vector it was folded up to."""

    snapshot: int
    vector: Vector
    records: int


@dataclass
class Run:
    """A finished build: for each view the snapshot, and how many log records of its topic the snapshot covers."""

    run_id: str
    kind: str
    pipeline: str
    generation: int
    epoch: int
    vector: dict[str, dict[str, int]]
    location: str = SERVED_LOCATION
    since: dict[str, dict[str, int]] = field(default_factory=dict)
    erasures: int = 0
    views: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0


def build(spark: SparkSession, settings: Settings, plan: Plan) -> Run:
    """Fold up to the newest possible boundary and return the run, ready to be published.

    Raises TransientError if no epoch is warm and archived yet, ContractError if the speed layer runs other code,
    TerminalError if the plan begins at a topic-partition that there is not, ConflictError if the run was retired while
    it folded: then nothing of it stays.
    """
    began = time.monotonic()
    run_id = plan.run_id or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{uuid.uuid4().hex[:6]}"
    pipeline, beside = plan.pipeline, plan.location != SERVED_LOCATION
    targets = [view for view in views_of(pipeline) if not plan.views or view.name in plan.views]
    snapshots = snapshots_now(spark)
    with connect(settings) as ops:
        archived = positions(spark, snapshots, settings.kafka.partitions)
        least = max(plan.erasures, served_number(ops))
        boundary = choose(spark, ops, pipeline, archived, None if beside else code_version(), least)
        if boundary is None:
            raise TransientError(
                "no epoch of the speed layer is warm and wholly archived yet; wait for the archiver "
                "(anabranch status) and run this again"
                + (f" (of a generation that has taken in erasure {least}: anabranch generation list)" if least else "")
            )
        erased = recorded(settings, ops, boundary.erasures)
        fresh = plan.full or plan.objects or beside
        bases = {view.name: None if fresh else _served(spark, ops, view, boundary) for view in targets}
        kind = "replay" if plan.since is not None else "incremental" if any(bases.values()) else "full"
        since = _since(spark, snapshots, plan.since, boundary)
        run = Run(
            run_id, kind, pipeline, boundary.generation, boundary.epoch, to_json(boundary.vector), plan.location,
            to_json(since), boundary.erasures,
        )  # fmt: skip
        _note_building(ops, run)
        for view in targets:
            ensure_batch_table(spark, settings, batch_name(view, plan.location), view)
        for start, group in _by_start(targets, bases, since):
            if folds := folding(group):
                records = (
                    raw_changes(spark, settings, snapshots, start, boundary.vector, erased)
                    if plan.objects
                    else changes(spark, snapshots, start, boundary.vector, erased)
                )
                _fold_group(spark, run, weighted(records), start, boundary, folds, bases)
            if joins := matching(group):
                end, objects = boundary.vector, plan.objects
                found = matches_between(spark, settings, snapshots, start, end, joins, objects, erased)
                _fold_group(spark, run, match_rows(found, joins), start, boundary, joins, bases)
        run.seconds = round(time.monotonic() - began, 3)
        if not _note_built(ops, run):
            _drop(spark, settings, run, targets)
            raise ConflictError(
                f"run {run_id} was retired while it folded: it stands on generation {run.generation}, and a guest was "
                "erased since, or it took more than a day. Nothing of it is left; run this again"
            )
    return run


def _drop(spark: SparkSession, settings: Settings, run: Run, views: Sequence[View]) -> None:
    """What a run has made, which nobody may read any more."""
    for view in views:
        name = batch_name(view, run.location)
        if run.location != SERVED_LOCATION:
            deleting(spark, settings).sql(f"DROP TABLE IF EXISTS {name} PURGE")
        elif view.name in run.views:
            forget_run(spark, name, run.run_id, run.views[view.name]["snapshot"])


def _since(
    spark: SparkSession, snapshots: dict[str, int], since: Vector | datetime | None, boundary: Boundary
) -> Vector:
    """Where a fold from nothing starts: at the beginning of the log, or where the plan says."""
    start: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in boundary.vector.items()}
    if isinstance(since, datetime):
        for topic, partitions in first_after(spark, snapshots, since, boundary.vector).items():
            start[topic] |= partitions
    elif since is not None:
        unknown = [
            f"{topic}/{partition}" for topic, partitions in since.items() for partition in partitions
            if partition not in start.get(topic, {})
        ]  # fmt: skip
        if unknown:
            raise TerminalError(f"there is no {', '.join(unknown)} in the changelog; there are {sorted(start)}")
        for topic, partitions in since.items():
            start[topic] |= partitions
    return {
        topic: {p: min(offset, boundary.vector[topic][p]) for p, offset in partitions.items()}
        for topic, partitions in start.items()
    }


def _served(spark: SparkSession, ops: Connection, view: View, boundary: Boundary) -> Base | None:
    """What is served of ``view``, or None if it has no batch side or was folded by other code."""
    row = ops.execute("SELECT * FROM served WHERE view = %s", (view.name,)).fetchone()
    if row is None or row["snapshot"] is None:
        return None
    if folded_by(spark, batch_name(view), row["snapshot"]) != code_version():
        log.info("%s: what is served was folded by other code; folding from nothing", view.name)
        return None
    if taken_in(spark, batch_name(view), row["snapshot"]) != boundary.erasures:
        log.info("%s: a guest was erased since what is served was folded; folding from nothing", view.name)
        return None
    vector = from_json(row["vector"])
    if not covers(boundary.vector, vector):
        raise TransientError(
            f"view {view.name} is served up to {to_json(vector)}, and the newest boundary that is warm and archived is "
            f"behind it: {to_json(boundary.vector)} of generation {boundary.generation}; run this again when that has "
            "moved on"
        )
    return Base(row["snapshot"], vector, row["records"])


def _by_start(targets: list[View], bases: dict[str, Base | None], since: Vector) -> list[tuple[Vector, list[View]]]:
    """Views grouped by where their fold starts: normally one group, more after a rollback of some views."""
    groups: list[tuple[Vector, list[View]]] = []
    for view in targets:
        base = bases[view.name]
        start = since if base is None else base.vector
        for other, members in groups:
            if other == start:
                members.append(view)
                break
        else:
            groups.append((start, [view]))
    return groups


def _fold_group(
    spark: SparkSession,
    run: Run,
    rows: DataFrame,
    start: Vector,
    boundary: Boundary,
    group: Sequence[View],
    bases: dict[str, Base | None],
) -> None:
    """One scan and one aggregation for the views that start at the same vector."""
    fold = Fold(view.contribution for view in group)
    reduced = fold.reduced(fold.contributed(rows)).persist()
    try:
        for view in group:
            topic = topic_of(view.entity)
            base = bases[view.name]
            slice_ = reduced.where(F.col("view") == view.name).select(*fold.columns(view.name))
            covered = sum(boundary.vector[topic].values()) - sum(start[topic].values())
            count = slices(spark, view, base.snapshot) + 1 if base else 0
            if base and count > COMBINE_AFTER:
                slice_, base, count = _combined(spark, view, base, slice_), None, 0
                covered = sum(boundary.vector[topic].values())
            elif base:
                slice_ = slice_.coalesce(1)  # one file a run, so that a query opens few
            properties = {
                "run": run.run_id, "vector": json.dumps(run.vector), "code": code_version(), "slices": str(count),
                "erasures": str(run.erasures),
            }  # fmt: skip
            faults.point("build.before-write")
            table = batch_name(view, run.location)
            snapshot = write_run(spark, table, run.run_id, base.snapshot if base else None, slice_, properties)
            faults.point("build.between-views")
            run.views[view.name] = {"snapshot": snapshot, "records": covered + (base.records if base else 0)}
            log.info("%s: snapshot %d", view.name, snapshot)
    finally:
        reduced.unpersist()


def _combined(spark: SparkSession, view: View, base: Base, slice_: DataFrame) -> DataFrame:
    before = spark.read.option("versionAsOf", base.snapshot).table(batch_name(view))
    return combine(view.contribution, before.unionByName(slice_))


def _note_built(ops: Connection, run: Run) -> bool:
    """Note that a run is built: only such a one, into what is served, can be published. False if it was retired, or
    begun anew on another generation, since it began."""
    return (
        ops.execute(
            "UPDATE runs SET state = 'built', views = %s, detail = %s, finished_at = now() WHERE run_id = %s AND "
            "generation = %s AND state IN ('building', 'built')",
            (json.dumps(run.views), _detail(run), run.run_id, run.generation),
        ).rowcount
        == 1
    )


def _detail(run: Run) -> str:
    return json.dumps({"seconds": run.seconds, "since": run.since, "erasures": run.erasures})


def _note_building(ops: Connection, run: Run) -> None:
    """Note that a run begins; one of the same name begins anew."""
    ops.execute(
        "INSERT INTO runs (run_id, kind, pipeline, generation, epoch, vector, views, code_version, state, location, "
        "detail) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (run_id) DO UPDATE SET (kind, "
        "generation, epoch, vector, views, code_version, state, location, detail, finished_at) = (excluded.kind, "
        "excluded.generation, excluded.epoch, excluded.vector, excluded.views, excluded.code_version, excluded.state, "
        "excluded.location, excluded.detail, now())",
        (
            run.run_id,
            run.kind,
            run.pipeline,
            run.generation,
            run.epoch,
            json.dumps(run.vector),
            json.dumps(run.views),
            code_version(),
            "building",
            run.location,
            _detail(run),
        ),
    )


def main(argv: list[str] | None = None) -> int:
    """``build [--full] [--view V …] [--run-id ID] …``. Prints the run as JSON."""
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    add_options(parser)
    arguments = parser.parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        print(json.dumps(asdict(build(spark, settings, plan_of(arguments)))))
        return 0

    return job(settings, "build", BATCH_CONF, work)


if __name__ == "__main__":
    sys.exit(main())
