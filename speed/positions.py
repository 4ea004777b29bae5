"""Where an epoch starts and ends, from Spark's own offset log: right for quiet partitions and empty epochs too."""

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from changelog.positions import Vector
from runtime.errors import LostStateError
from speed.generation import CHECKPOINT
from speed.journal import JOURNAL, SIDES
from views.fold import Fold


def epoch_end(checkpoint: Path, epoch: int) -> Vector:
    """End of ``epoch``, as Spark wrote it down before it ran the epoch (``<checkpoint>/offsets/<epoch>``).

    The file is ``v1``, a line of metadata, and a line of offsets for each source; the application has one source.
    Raises LostStateError if it is not there or not in this form.
    """
    path = checkpoint / "offsets" / str(epoch)
    try:
        version, _metadata, offsets = path.read_text().splitlines()
        if version != "v1":
            raise ValueError(f"version {version!r}")
        return {
            topic: {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in json.loads(offsets).items()
        }
    except (OSError, ValueError, AttributeError) as error:
        raise LostStateError(
            CHECKPOINT, f"checkpoint {checkpoint}: the offsets of epoch {epoch} cannot be read ({error})"
        ) from error


def epoch_range(checkpoint: Path, epoch: int, start: Vector) -> tuple[Vector, Vector]:
    """(start, end) of an epoch; ``start`` is the generation's own, where epoch 0 begins."""
    return (epoch_end(checkpoint, epoch - 1) if epoch > 0 else start), epoch_end(checkpoint, epoch)


def last_epoch(checkpoint: Path, start: Vector) -> tuple[int | None, Vector]:
    """(the last epoch that Spark noted as done, its end); (None, ``start``) before the first."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    return (max(done), epoch_end(checkpoint, max(done))) if done else (None, start)


def position_rows(spark: SparkSession, fold: Fold, start: Vector, end: Vector) -> DataFrame:
    """One contribution to the journal for each topic-partition: its start, its end, and counts of nothing; and one to
    the sides for each partition.

    So a partition in which nothing happened has its row too. The other slots are missing.
    """
    place = fold.places(JOURNAL.name)
    counts = [state.field.name for state in JOURNAL.states if state.reducer == "sum"]
    fields = ["topic", "kafka_partition", "start_offset", "end_offset", *counts]
    names = ["view", *(place[name] for name in fields)]
    nothing = ", 0L" * len(counts)
    values = ", ".join(
        f"('{JOURNAL.name}', '{topic}', {partition}, {start[topic][partition]}L, {offset}L{nothing})"
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )
    positions = spark.sql(f"SELECT * FROM VALUES {values} AS position({', '.join(names)})")
    numbers = sorted({partition for partitions in end.values() for partition in partitions})
    of_sides = ", ".join(f"('{SIDES}', {partition})" for partition in numbers)
    slot = fold.places(SIDES)["kafka_partition"]
    sides = spark.sql(f"SELECT * FROM VALUES {of_sides} AS side(view, {slot})")
    return positions.unionByName(sides, allowMissingColumns=True).coalesce(1)
