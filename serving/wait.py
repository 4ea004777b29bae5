"""Read your writes: wait until the merged views cover everything that was acknowledged when the call began."""

import time
from collections.abc import Callable

from changelog.positions import Vector, covers
from changelog.topics import acknowledged_offsets, end_offsets
from runtime import ops, trino
from runtime.errors import TransientError
from runtime.settings import Settings
from serving.published import current


def covered(settings: Settings) -> Vector:
    """The position up to which every merged view covers the log: the end of the last epoch of what is served.

    Raises TransientError before the first publication.
    """
    with ops.connect(settings) as connection:
        served = current(connection)
    if not served:
        raise TransientError("nothing is published yet: anabranch up")
    lake = trino.connect(settings)
    vector: Vector | None = None
    for generation, epoch in {(view.generation, view.epoch) for view in served}:
        start = next(view.vector for view in served if (view.generation, view.epoch) == (generation, epoch))
        _, rows = trino.execute(
            lake,
            "SELECT s.journal.topic, s.journal.kafka_partition, max(s.journal.end_offset) FROM lake.speed.main s "
            f"WHERE s.view = 'journal' AND s.generation = {generation} AND s.epoch >= {epoch} GROUP BY 1, 2",
        )
        reached: Vector = {topic: dict(partitions) for topic, partitions in start.items()}
        for topic, partition, end in rows:
            reached[topic][partition] = max(reached[topic][partition], end)
        vector = reached if vector is None else _least(vector, reached)
    assert vector is not None
    return vector


def wait(
    settings: Settings,
    target: Vector | None = None,
    timeout_seconds: float = 300.0,
    progress: Callable[[int], None] = lambda _missing: None,
) -> Vector:
    """Return once the merged views cover ``target`` (default: all that Kafka has acknowledged by now).

    What is acknowledged behind a transaction that is open is waited for as well: it can be read when that transaction
    is over, committed or aborted. ``progress`` is told how many offsets are missing. Raises TransientError after
    ``timeout_seconds`` without getting there; calling again goes on waiting.
    """
    wanted = target if target is not None else acknowledged_offsets(settings)
    deadline = time.monotonic() + timeout_seconds
    while not covers(reached := covered(settings), wanted):
        missing = sum(
            max(0, offset - reached.get(topic, {}).get(partition, 0))
            for topic, partitions in wanted.items()
            for partition, offset in partitions.items()
        )
        progress(missing)
        if time.monotonic() > deadline:
            raise TransientError(
                f"after {timeout_seconds:.0f} s the merged views still lack {missing} offsets; "
                + (
                    _held_up(wanted, end_offsets(settings))
                    or _stands_on_an_earlier(settings)
                    or "is the speed layer running? anabranch status, anabranch logs speed"
                )
            )
        time.sleep(0.25)
    return wanted


def deferred(settings: Settings) -> dict[str, int]:
    """For each view that leaves changes of batch sources to the batch layer now, how many they are: what is covered and
    not yet seen there. The next batch run that covers them brings them in."""
    sql = "SELECT view, deferred_records FROM lake.serving.boundary WHERE deferred_records > 0 ORDER BY view"
    _, rows = trino.execute(trino.connect(settings), sql)
    return {view: int(number) for view, number in rows}


def _least(a: Vector, b: Vector) -> Vector:
    return {topic: {p: min(offset, b[topic][p]) for p, offset in parts.items()} for topic, parts in a.items()}


def _stands_on_an_earlier(settings: Settings) -> str:
    """Says that the views stand on a generation that has ended; empty if they do not."""
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT max(generation) AS newest FROM generations").fetchone()
        served = {pair.generation for pair in current(connection)}
    if row is None or not served or min(served) == row["newest"]:
        return ""
    return (
        f"the views stand on generation {min(served)} and the speed layer runs generation {row['newest']}: the next "
        "batch run that finds it warm switches them (the DAG batch_views, or anabranch batch)"
    )


def _held_up(wanted: Vector, readable: Vector) -> str:
    """Says which open transactions keep the log from being read up to ``wanted``; empty if none does."""
    places = [
        f"{topic}/{partition} from offset {readable[topic][partition]} on"
        for topic, partitions in wanted.items()
        for partition, offset in partitions.items()
        if readable.get(topic, {}).get(partition, offset) < offset
    ]
    if not places:
        return ""
    return (
        f"a transaction is open in {', '.join(places)}, and nothing behind it can be read: its producer ends it, or "
        "Kafka aborts it after that producer's transaction.timeout.ms"
    )
