"""Build: archive → ``batch.<view>``, for all views of a pipeline in one scan.

``spark-submit batch/build.py [--full] [--view V …]`` or ``anabranch batch``. Folds exactly the archived changes below
the start of an epoch: from nothing (full), or only those since what is served (incremental). It writes on branches that
nobody reads, tags them, and notes the run; publication is another step. Killed at any point it leaves nothing that
counts; a second call with the same run id makes the branches anew.
"""

import argparse
import json
import logging
import sys
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batch.archive_table import changes, positions, snapshots_now
from batch.batch_table import batch_name, ensure_batch_table, slices, write_run
from batch.boundary import Boundary, choose
from batch.ingest import BATCH_CONF
from changelog.positions import Vector, covers, from_json, to_json
from runtime import faults
from runtime.errors import TransientError
from runtime.ops import Connection, connect
from runtime.settings import Settings, topic_of
from runtime.spark import job
from runtime.version import code_version
from views.algebra import View
from views.fold import Fold, combine, weighted
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
    views: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0


def build(
    spark: SparkSession, settings: Settings, pipeline: str, full: bool, names: list[str], run_id: str | None = None
) -> Run:
    """Fold up to the newest possible boundary and return the run, ready to be published.

    ``names``: the views to build, all of the pipeline if empty; a run that leaves views out is published for the named
    ones only. Raises TransientError if no epoch is warm and archived yet.
    """
    began = time.monotonic()
    run_id = run_id or f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}_{uuid.uuid4().hex[:6]}"
    targets = [view for view in views_of(pipeline) if not names or view.name in names]
    snapshots = snapshots_now(spark)
    with connect(settings) as ops:
        archived = positions(spark, snapshots, settings.kafka.partitions)
        boundary = choose(spark, ops, pipeline, archived)
        if boundary is None:
            raise TransientError(
                "no epoch of the speed layer is warm and wholly archived yet; wait for the archiver "
                "(anabranch status) and run this again"
            )
        bases = {view.name: None if full else _served(ops, view, boundary) for view in targets}
        kind = "incremental" if any(bases.values()) else "full"
        run = Run(run_id, kind, pipeline, boundary.generation, boundary.epoch, to_json(boundary.vector))
        _note(ops, run_id, kind, boundary, pipeline, "building", {})
        for view in targets:
            ensure_batch_table(spark, view)
        for start, group in _by_start(targets, bases, boundary):
            _fold_group(spark, run, snapshots, start, boundary, group, bases)
        run.seconds = round(time.monotonic() - began, 3)
        _note(ops, run_id, run.kind, boundary, pipeline, "built", run.views, {"seconds": run.seconds})
    return run


def _served(ops: Connection, view: View, boundary: Boundary) -> Base | None:
    """What is served of ``view``, or None if it has no batch side or was folded by other code."""
    row = ops.execute(
        "SELECT v.*, r.code_version FROM publication_views v JOIN publications p USING (publication) "
        "LEFT JOIN runs r ON r.run_id = v.run_id WHERE v.view = %s AND p.state = 'finished' "
        "ORDER BY v.publication DESC LIMIT 1",
        (view.name,),
    ).fetchone()
    if row is None or row["snapshot"] is None:
        return None
    if row["code_version"] != code_version():
        log.info("%s: what is served was folded by other code; folding from nothing", view.name)
        return None
    vector = from_json(row["vector"])
    if not covers(boundary.vector, vector):
        raise TransientError(
            f"view {view.name} is served up to {to_json(vector)}, and the newest boundary that is warm and archived is "
            f"behind it: {to_json(boundary.vector)}; run this again when the archive has moved on"
        )
    return Base(row["snapshot"], vector, row["records"])


def _by_start(
    targets: list[View], bases: dict[str, Base | None], boundary: Boundary
) -> list[tuple[Vector, list[View]]]:
    """Views grouped by where their fold starts: normally one group, more after a rollback of some views."""
    zero: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in boundary.vector.items()}
    groups: list[tuple[Vector, list[View]]] = []
    for view in targets:
        base = bases[view.name]
        start = zero if base is None else base.vector
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
    snapshots: dict[str, int],
    start: Vector,
    boundary: Boundary,
    group: list[View],
    bases: dict[str, Base | None],
) -> None:
    """One scan and one aggregation for the views that start at the same vector."""
    fold = Fold(view.contribution for view in group)
    part = weighted(changes(spark, snapshots, start, boundary.vector))
    reduced = fold.reduced(fold.contributed(part)).persist()
    try:
        for view in group:
            topic = topic_of(view.entity)
            base = bases[view.name]
            slice_ = reduced.where(F.col("view") == view.name).select(*fold.columns(view.name))
            records = sum(boundary.vector[topic].values()) - sum(start[topic].values())
            count = slices(spark, view, base.snapshot) + 1 if base else 0
            if base and count > COMBINE_AFTER:
                slice_, base, count = _combined(spark, view, base, slice_), None, 0
                records = sum(boundary.vector[topic].values())
            properties = {
                "run": run.run_id, "vector": json.dumps(run.vector), "code": code_version(), "slices": str(count)
            }  # fmt: skip
            faults.point("build.before-write")
            snapshot = write_run(spark, view, run.run_id, base.snapshot if base else None, slice_, properties)
            faults.point("build.between-views")
            run.views[view.name] = {"snapshot": snapshot, "records": records + (base.records if base else 0)}
            log.info("%s: snapshot %d", view.name, snapshot)
    finally:
        reduced.unpersist()


def _combined(spark: SparkSession, view: View, base: Base, slice_: DataFrame) -> DataFrame:
    before = spark.read.option("versionAsOf", base.snapshot).table(batch_name(view))
    return combine(view.contribution, before.unionByName(slice_))


def _note(
    ops: Connection,
    run_id: str,
    kind: str,
    boundary: Boundary,
    pipeline: str,
    state: str,
    views: dict[str, Any],
    detail: dict[str, Any] | None = None,
) -> None:
    ops.execute(
        "INSERT INTO runs (run_id, kind, pipeline, generation, epoch, vector, views, code_version, state, detail) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (run_id) DO UPDATE SET (generation, epoch, "
        "vector, views, code_version, state, detail, finished_at) = (excluded.generation, excluded.epoch, "
        "excluded.vector, excluded.views, excluded.code_version, excluded.state, excluded.detail, now())",
        (
            run_id,
            kind,
            pipeline,
            boundary.generation,
            boundary.epoch,
            json.dumps(to_json(boundary.vector)),
            json.dumps(views),
            code_version(),
            state,
            json.dumps(detail or {}),
        ),
    )


def main(argv: list[str] | None = None) -> int:
    """``build [--full] [--view V …] [--run-id ID]``. Prints the run as JSON."""
    parser = argparse.ArgumentParser(prog="build", description=__doc__)
    parser.add_argument("--full", action="store_true", help="fold from nothing, not from what is served")
    parser.add_argument("--view", action="append", default=[], help="only this view (repeatable)")
    parser.add_argument("--pipeline", default="main")
    parser.add_argument("--run-id", help="name of the run; the same name again replaces it")
    arguments = parser.parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        run = build(spark, settings, arguments.pipeline, arguments.full, arguments.view, arguments.run_id)
        print(json.dumps(asdict(run)))
        return 0

    return job(settings, "build", BATCH_CONF, work)


if __name__ == "__main__":
    sys.exit(main())
