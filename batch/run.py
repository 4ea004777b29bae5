"""Ingest and build in one Spark application: what ``anabranch batch`` runs. Publication is the caller's step."""

import argparse
import json
import logging
import sys
import time
from dataclasses import asdict

from pyspark.sql import SparkSession

from batch.build import build
from batch.ingest import BATCH_CONF, ingest
from batch.plan import add_options, plan_of
from batch.report import EXIT_INCOMPLETE, complain
from changelog.archive.position import stored_offsets
from changelog.archive.ranges import Hole
from changelog.positions import Vector, covers
from changelog.topics import end_offsets
from runtime.errors import ArchiveError, HoleError
from runtime.settings import Settings
from runtime.spark import job

log = logging.getLogger("batch")


def main(argv: list[str] | None = None) -> int:
    """Prints ``{"ingest": …, "run": …}``; 1 if either failed, EXIT_INCOMPLETE with holes or alarms; reasons in the log.

    What is missing or damaged stops the archived position before it, so the run is built below it and is right; the
    speed side holds the rest.
    """
    parser = argparse.ArgumentParser(prog="batch", description=__doc__)
    add_options(parser)
    parser.add_argument("--accept-hole", action="append", default=[])
    parser.add_argument("--patience", type=float, default=90)
    arguments = parser.parse_args(argv)
    settings = Settings()
    ends = end_offsets(settings)

    def work(spark: SparkSession) -> int:
        plan = plan_of(arguments)
        wait_for_archiver(settings, ends, arguments.patience)
        report = ingest(spark, settings, tuple(Hole.parse(text) for text in arguments.accept_hole))
        run = build(spark, settings, plan)
        print(json.dumps({"ingest": asdict(report), "run": asdict(run)}))
        complain(report)
        return 0

    return job(
        settings, "batch", BATCH_CONF, work, statuses={HoleError: EXIT_INCOMPLETE, ArchiveError: EXIT_INCOMPLETE}
    )


def wait_for_archiver(settings: Settings, ends: Vector, patience: float) -> bool:
    """Wait until the archiver has stored everything below ``ends``; whether it did within ``patience`` seconds.

    Only convenience: what is not stored yet stays on the speed side.
    """
    deadline = time.monotonic() + patience
    while True:
        if covers(stored_offsets(settings), ends):
            return True
        if time.monotonic() > deadline:
            log.info("the archiver has not stored everything yet; going on with what is there")
            return False
        time.sleep(0.25)


if __name__ == "__main__":
    sys.exit(main())
