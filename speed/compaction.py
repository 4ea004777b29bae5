"""Compaction of the speed table, done by the stream itself: it is the only writer of new epochs, so nothing conflicts.

An epoch is *closed* while a later one runs: Spark has noted it as done and never replays it. (A file that holds a
replayed epoch together with others could not be replaced any more.) Files of closed epochs are put together by fours,
the results by fours again, and so on up to a bucket, so a query opens few files at any time.
"""

import logging
import time

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from runtime import faults
from runtime.spark import CATALOG

log = logging.getLogger("compaction")

STEP = 4


def closed_epochs(epoch: int, bucket: int) -> tuple[int, int] | None:
    """Epochs (first, one past the last) to put together while ``epoch`` runs; None if it is not time.

    At the end of a bucket that is the bucket and the one before it, which is only looked at unless its own turn failed.
    """
    if epoch and epoch % bucket == 0:
        return max(0, epoch - 2 * bucket), epoch
    size = 1
    while epoch and epoch % (size * STEP) == 0:
        size *= STEP
    return (epoch - size, epoch) if 1 < size < bucket else None


def compact(spark: SparkSession, table: str, generation: int, epoch: int, bucket: int) -> None:
    """Put files of closed epochs together if it is time, in one commit that changes no row.

    A second call finds nothing to do. What goes wrong is logged and tried again with the bucket: small files are slow,
    never wrong.
    """
    closed = closed_epochs(epoch, bucket)
    if closed is None:
        return
    where = f"generation = {generation} AND epoch >= {closed[0]} AND epoch < {closed[1]}"
    began = time.monotonic()
    faults.point("compaction.before-commit")
    try:
        (done,) = spark.sql(
            f"CALL {CATALOG}.system.rewrite_data_files(table => '{table}', "
            f"where => '{where}', options => map('min-input-files', '2'))"
        ).collect()
        files = done["rewritten_data_files_count"]
        log.info("epoch %d: %d files put together in %.2f s", epoch, files, time.monotonic() - began)
        faults.point("compaction.after-commit")
    except (Py4JError, PySparkException) as error:
        log.warning("the files of epochs %d to %d stay as they are: %s", closed[0], closed[1] - 1, error)
