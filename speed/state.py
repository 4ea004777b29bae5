"""Whether the state of a generation is there, whole, and agrees: checkpoint, histories, speed table, and what Kafka
still has. Looked at in the driver before the stream is started.

What is lost is answered by a new generation, which makes it anew from archive and log. Only what is exact beyond doubt
is mended in place: an epoch that was planned or done and is noted nowhere else is run again.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from changelog.positions import Vector
from runtime.errors import LostStateError
from runtime.settings import Settings
from speed import checkpoint
from speed.checkpoint import Stand
from speed.generation import CHECKPOINT, EPOCHS, HISTORIES, RETENTION, Generation
from speed.history import standing
from speed.positions import epoch_end
from views.matching import Matches

log = logging.getLogger("state")


def check_state(
    settings: Settings, generation: Generation, stored: int, views: Sequence[Matches], starts: Vector
) -> Vector:
    """The position from which the stream goes on. ``stored``: the newest epoch of the generation in the speed table, -1
    if there is none; ``starts``: where Kafka's log begins.

    Raises LostStateError if something is lost that a new generation makes anew. A second call changes nothing.
    """
    path = generation.checkpoint(settings)
    where = f"pipeline {generation.pipeline}, generation {generation.number}"
    at, known = checkpoint.stand(path), dict[int, int | None]()
    if at.planned >= 0:
        stores = generation.histories(settings).glob("[0-9]*")
        known = {int(store.name): standing(store, views) for store in stores}
        at = mend(path, max(stored, *(epoch for epoch in known.values() if epoch is not None), -1), where)
    if at.planned < 0:
        if stored >= 0:
            raise LostStateError(CHECKPOINT, f"{where}: its checkpoint {path} is lost")
        shutil.rmtree(path, ignore_errors=True)  # nothing has come of it, and Spark would trip over half of it
        position = generation.start
    else:
        position = epoch_end(path, at.done) if at.done >= 0 else generation.start
        check_agreement(where, at, stored, known, sorted(next(iter(generation.start.values()))))
    check_retention(where, position, starts)
    return position


def mend(path: Path, noted: int, where: str) -> Stand:
    """How far a checkpoint is, after what is damaged and can be done without was removed: the newest plan, if nothing
    has come of it (``noted`` is the newest epoch that the speed table or the histories know); the newest note that an
    epoch is done, which is run again then over the same part of the log; the name of the query.

    Raises LostStateError for any other damage.
    """
    while damaged := checkpoint.damaged(path):
        at, broken = checkpoint.stand(path), damaged[0]
        newest_plan = broken == path / "offsets" / str(at.planned) and at.done < at.planned and noted < at.planned
        newest_done = broken == path / "commits" / str(at.done) and at.done == at.planned
        if not newest_plan and not newest_done and broken != path / checkpoint.METADATA:
            raise LostStateError(CHECKPOINT, f"{where}: its checkpoint is damaged: {broken} is not whole")
        log.warning("%s: %s is not whole; it goes on without", where, broken)
        checkpoint.remove(broken)
    return checkpoint.stand(path)


def check_agreement(
    where: str, at: Stand, stored: int, histories: dict[int, int | None], partitions: Sequence[int]
) -> None:
    """Raise LostStateError unless checkpoint, speed table and histories (partition → newest epoch) tell of the same
    epochs: all that are done, and at most one more, which is planned and was interrupted."""
    if not at.done <= at.planned <= at.done + 1 or stored > at.planned:
        raise LostStateError(
            CHECKPOINT,
            f"{where}: its checkpoint has planned epoch {at.planned} and done {at.done}, the speed table has "
            f"{stored}: files of the checkpoint were lost or put back",
        )
    if stored < at.done:
        raise LostStateError(
            EPOCHS,
            f"{where}: the speed table has epochs up to {stored}, done were {at.done}: it lost some",
        )
    for partition in partitions:
        if histories.get(partition) not in (at.done, at.planned):
            raise LostStateError(
                HISTORIES,
                f"{where}: the histories of guests of partition {partition} stand at epoch {histories.get(partition)}, "
                f"the checkpoint at {at.done}: they were lost or put back",
            )


def check_retention(where: str, position: Vector, starts: Vector) -> None:
    """Raise LostStateError if Kafka's log begins behind the position of the stream."""
    gone = [
        f"{topic}/{partition} from {offset} to {starts[topic][partition] - 1}"
        for topic, partitions in sorted(position.items())
        for partition, offset in sorted(partitions.items())
        if offset < starts[topic][partition]
    ]
    if gone:
        raise LostStateError(RETENTION, f"{where}: Kafka let go of {', '.join(gone)} before the stream had read it")
