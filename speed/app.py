"""The speed application: ``python -m speed.app``. One process, one streaming query for each pipeline.

It goes on where its checkpoint stands, and replays the epoch that a crash interrupted: the write of an epoch replaces
whatever that epoch wrote before. Where state is lost, or Kafka has let go of what comes next, it begins a new
generation by itself, beside the served one. SIGTERM ends it after the running epoch. Exit status 78 means that it must
not be started again before somebody has looked: the message says what to do.
"""

import fcntl
import json
import logging
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import psycopg
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from changelog.erased import Erased
from changelog.erasures import REFRESH_SECONDS, last_number, recorded
from changelog.positions import to_json
from changelog.stores import DAMAGE
from changelog.topics import acknowledged_offsets, check_not_beyond, check_topics, start_offsets
from runtime import faults
from runtime.errors import ArchiveBehindError, ContractError, LostStateError, TransientError
from runtime.heartbeat import Heartbeat
from runtime.ops import Connection, connect
from runtime.service import serve
from runtime.settings import Settings
from runtime.spark import session
from speed.alerts import Alerts
from speed.compaction import compact
from speed.copies import fill_identities
from speed.filling import known_until, ready
from speed.generation import Generation, renew, resume
from speed.history import look, sizes
from speed.journal import BAD_RECORDS, JOURNAL, SIDES, deferred, sides_of
from speed.positions import epoch_range, last_epoch, position_rows
from speed.state import check_state
from speed.stream import contributions
from speed.table import ensure_table, table_name
from views.algebra import deferring
from views.fold import Fold
from views.matching import MATCHED_DDL, folding, match_rows, matching
from views.registry import views_of

log = logging.getLogger("speed")

PIPELINE = "main"
CONTRACT_CHECK_SECONDS = 30.0
WAIT_SECONDS = 2.0

DAMAGED = re.compile(rf"lmdb\.({'|'.join(error.__name__ for error in DAMAGE)})")
"""What a worker says of a store in which pages are not what they were."""

TERMINAL = re.compile(r"runtime\.errors\.ContractError: (.+)")
"""What a worker says of what trying again cannot help."""

STREAM_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.killEnabled": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.python.worker.reuse": "true",
}


def main() -> int:
    """Run until told to stop. Returns the exit status."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every call of the listener
    return serve("speed", run)


def run(settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
    """Start the query and watch it until it is time to stop. Raises what ended it otherwise."""
    heartbeat.beat("starting", {})
    check_topics(settings)
    with alone(settings):
        ui = settings.speed.ui_port
        conf = {**STREAM_CONF, **({"spark.ui.enabled": "true", "spark.ui.port": str(ui)} if ui else {})}
        spark = session(settings, "anabranch-speed", settings.speed.driver_memory, conf)
        folds = Folds(settings.speed.batch_services)
        ensure_table(spark, PIPELINE, folds.contributions, settings.speed.bucket_epochs)
        prepared = prepare(spark, settings, heartbeat, stopping, folds)
        if prepared is not None:
            work(spark, settings, heartbeat, stopping, *prepared, folds)
        spark.stop()


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Hold the state on local disk for this process; the system gives it free when the process ends, however it ends.

    Raises TransientError if another one has it.
    """
    path = settings.home / "checkpoints" / f"{PIPELINE}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TransientError(f"another speed application works with {path.parent}: anabranch status") from error
        yield


def prepare(
    spark: SparkSession, settings: Settings, heartbeat: Heartbeat, stopping: Event, folds: "Folds"
) -> tuple[Generation, Erased] | None:
    """The generation to run, with its state where it has to be: the one that goes on, or another one where what that
    needs is lost; and who is erased in it. None if it was told to stop meanwhile: it waits for the archive to reach
    what Kafka still has."""
    said = ""
    while not stopping.is_set():
        try:
            with connect(settings) as ops:
                return _prepared(spark, settings, ops, folds)
        except ArchiveBehindError as error:
            heartbeat.beat("waiting", {"error": str(error)})
            if said != (said := str(error)):
                log.warning("%s", error)
            stopping.wait(WAIT_SECONDS)
    return None


def _prepared(spark: SparkSession, settings: Settings, ops: Connection, folds: "Folds") -> tuple[Generation, Erased]:
    generation, starts = resume(settings, ops, PIPELINE), start_offsets(settings)
    try:
        position = check_state(settings, generation, _newest_epoch(spark, generation.number), folds.matching, starts)
    except LostStateError as lost:
        faults.point("speed.lost")
        log.warning("%s", lost)
        generation = renew(settings, ops, generation, lost)
        log.warning("generation %d begins by itself (%s)", generation.number, lost.cause)
        faults.point("speed.renewed")
        position = generation.start
    check_not_beyond(f"generation {generation.number}", position, acknowledged_offsets(settings))
    for earlier in generation.identities(settings).parent.glob("[0-9]*"):
        if int(earlier.name) < generation.number:  # it never runs again
            shutil.rmtree(earlier)
    erased = recorded(settings, ops, generation.erasures)
    fill_identities(spark, settings, ops, generation, position, starts, erased)
    ready(spark, settings, generation, folds.matching, erased)
    log.info("pipeline %s, generation %d, code %s", PIPELINE, generation.number, generation.code_version)
    return generation, erased


def work(
    spark: SparkSession,
    settings: Settings,
    heartbeat: Heartbeat,
    stopping: Event,
    generation: Generation,
    erased: Erased,
    folds: "Folds",
) -> None:
    """Run the stream until it is time to stop. Raises what ended it otherwise; what was found lost or damaged meanwhile
    is answered when the application is started again."""
    failures: list[LostStateError] = []
    progress = Progress(generation, generation.checkpoint(settings))
    spark.streams.addListener(progress)
    histories = generation.histories(settings)
    query = start(spark, settings, generation, folds, failures, erased)
    checked = asked = time.monotonic()
    outdated = False
    try:
        while not stopping.is_set() and not outdated and not query.awaitTermination(1):
            heartbeat.beat("running", {**progress.detail, "histories": sizes(histories, folds.matching)})
            if time.monotonic() - checked > CONTRACT_CHECK_SECONDS:
                check_topics(settings)
                checked = time.monotonic()
            if time.monotonic() - asked > REFRESH_SECONDS:
                outdated, asked = _is_outdated(settings, generation), time.monotonic()
    except StreamingQueryException as error:
        heartbeat.beat("failed", {"error": str(error)[:2000]})
        if DAMAGED.search(str(error)):
            log.warning("a store of generation %d is damaged; all of them are put away", generation.number)
            shutil.rmtree(histories)
            shutil.rmtree(generation.identities(settings), ignore_errors=True)
        elif said := TERMINAL.search(str(error)):
            raise ContractError(said[1]) from error
        if failures:
            raise TransientError(str(failures[0])) from error
        raise
    heartbeat.beat("stopping", progress.detail)
    while (
        query.isActive and query.status["isTriggerActive"] and query.status["message"] != "Waiting for data to arrive"
    ):
        time.sleep(0.05)
    query.stop()
    if outdated:
        raise TransientError("a guest has been erased since this generation began: another one begins")


class Folds:
    """Everything that an epoch computes: the views that fold single changes, with the journal and the bad records, and
    the views of matches. ``batch_services``: of whom nothing is folded into views that defer, and only counted."""

    def __init__(self, batch_services: Sequence[str] = ()) -> None:
        views = views_of(PIPELINE)
        self.matching = matching(views)
        folds = (deferring(view.contribution, batch_services if view.defers else ()) for view in folding(views))
        stored = [JOURNAL, BAD_RECORDS, deferred(batch_services), *folds]
        self.changes = Fold([*stored, sides_of(self.matching)])
        self.matches = Fold(view.contribution for view in self.matching)
        self.contributions = (*stored, *self.matches.contributions)

    def sides(self, reduced: DataFrame) -> DataFrame:
        """The records that matches can be made of: ``kafka_partition``, ``records``."""
        return reduced.where(F.col("view") == SIDES).select(*self.changes.columns(SIDES))

    def increments(self, reduced: DataFrame, found: DataFrame) -> DataFrame:
        """What the changes and the matches of an epoch add: ``view`` and one struct column for each contribution."""
        of_changes = reduced.where(F.col("view") != SIDES).select("view", *self.changes.structs)
        of_matches = self.matches.increments(match_rows(found, self.matching))
        return of_changes.drop(SIDES).unionByName(of_matches, allowMissingColumns=True)


def start(
    spark: SparkSession,
    settings: Settings,
    generation: Generation,
    folds: Folds,
    failures: list[LostStateError],
    erased: Erased,
) -> StreamingQuery:
    """Start the streaming query of one generation. ``failures`` receives what Spark would wrap beyond recognition."""
    checkpoint = generation.checkpoint(settings)
    histories = generation.histories(settings)
    table = table_name(generation.pipeline)
    patterns = [view for view in folds.matching if view.alert]
    alerting = F.col("matched").isin(*(view.name for view in patterns))
    alerts = Alerts(
        settings, generation.pipeline, patterns, known_until(histories, folds.matching, checkpoint, generation)
    )

    def commit(batch: DataFrame, epoch: int) -> None:
        """Write everything that epoch ``epoch`` produces, in one commit that replaces what it wrote before."""
        try:
            start, end = epoch_range(checkpoint, epoch, generation.start)
        except LostStateError as error:
            failures.append(error)
            raise
        rows = batch.unionByName(position_rows(batch.sparkSession, folds.changes, start, end), allowMissingColumns=True)
        reduced = folds.changes.reduced(rows).persist()  # small, and read twice
        looking = look(histories, folds.matching, epoch, start, end, generation.warm)
        found = folds.sides(reduced).mapInArrow(looking, MATCHED_DDL).persist()
        here = batch.sparkSession.sql(f"SELECT * FROM VALUES ({generation.number}, {epoch}L) AS t(generation, epoch)")
        produced = (
            folds.increments(reduced, found)
            .coalesce(1)  # one file an epoch
            .crossJoin(F.broadcast(here))  # as literals they would be in the code that Spark makes and compiles
            .select("generation", "epoch", "view", *(contribution.name for contribution in folds.contributions))
        )
        faults.point("speed.before-commit")
        try:
            produced.writeTo(table).overwrite((F.col("generation") == generation.number) & (F.col("epoch") == epoch))
            faults.point("speed.after-commit")
            alerts.send((row["matched"], row["payload"]) for row in found.where(alerting).collect())
        finally:
            found.unpersist()
            reduced.unpersist()
        faults.point("speed.after-alerts")
        compact(batch.sparkSession, table, generation.number, epoch, settings.speed.bucket_epochs)

    return (
        contributions(spark, settings, generation, folds.changes, erased)
        .writeStream.foreachBatch(commit)
        .option("checkpointLocation", checkpoint.as_uri())
        .trigger(processingTime=f"{settings.speed.trigger_seconds} seconds")
        .queryName(f"speed-{generation.pipeline}-{generation.number}")
        .start()
    )


def _newest_epoch(spark: SparkSession, generation: int) -> int:
    """The newest epoch of a generation in the speed table; -1 if there is none."""
    (row,) = spark.table(table_name(PIPELINE)).where(F.col("generation") == generation).agg(F.max("epoch")).collect()
    return -1 if row[0] is None else int(row[0])


def _is_outdated(settings: Settings, generation: Generation) -> bool:
    """Whether somebody was erased since the generation began. Nobody knows while the database is away."""
    try:
        with connect(settings) as ops:
            return last_number(ops) > generation.erasures
    except (TransientError, psycopg.Error):
        return False


class Progress(StreamingQueryListener):
    """What Spark says of each epoch, for the heartbeat: Spark keeps its offsets to itself, and group-lag tools see
    nothing of them."""

    def __init__(self, generation: Generation, checkpoint: Path) -> None:
        epoch, end = last_epoch(checkpoint, generation.start)
        self.detail: dict[str, object] = {
            "pipeline": generation.pipeline, "generation": generation.number, "epoch": epoch, "end": to_json(end),
            "renewed": generation.reason,
        }  # fmt: skip

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's names
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        self.detail = {
            **self.detail,
            "epoch": progress.batchId,
            "epoch_ms": dict(progress.durationMs),
            "rows_per_second": progress.processedRowsPerSecond,
            "end": json.loads(progress.sources[0].endOffset),
        }

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


if __name__ == "__main__":
    sys.exit(main())
