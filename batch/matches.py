"""The views of matches in the batch layer: the same functions as in the stream, over histories from the archive."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batch.archive_table import changes
from batch.raw import raw_changes
from changelog.archive.columnar import archived, below
from changelog.erased import Erased
from changelog.positions import Vector
from runtime.settings import Settings, entity_of
from views.matching import CLOCK_SLACK, SECOND, Matches, Progress, matched, progress_of, sides, topics_of


def matches_between(
    spark: SparkSession,
    settings: Settings,
    snapshots: dict[str, int],
    start: Vector,
    end: Vector,
    views: list[Matches],
    objects: bool,
    erased: Erased,
) -> DataFrame:
    """The matches (``MATCHED_DDL``) that the log has below ``end`` and did not have below ``start``.

    ``objects``: from the raw objects. What is read of the archive reaches back from ``start`` as far as a match does;
    of guests of whom nothing is new and no time is up nothing is looked at.
    """
    nothing: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in end.items()}
    before, after = progress_of(_of_topics(spark, snapshots, views, erased).where(below(end)), below(start), "true")
    read = (
        raw_changes(spark, settings, snapshots, nothing, end, erased)
        if objects
        else changes(spark, snapshots, nothing, end, erased)
    )
    if start == nothing:
        return matched(sides(read, views), views, start, before, after)
    partitions = sorted({partition for topic in topics_of(views) for partition in end[topic]})
    rows = sides(read.where(" OR ".join(_reached(view, before, partitions) for view in views)), views)
    new = [f"NOT ({below(start)})"]
    for view in views:
        for trigger in view.triggers.values():
            for partition in partitions if trigger.after_seconds else ():
                since = view.progress(before, partition) - trigger.after_seconds * SECOND
                new.append(f"(view = '{view.name}' AND kafka_partition = {partition} AND time >= {since})")
    touched = rows.where(" OR ".join(new)).select("guest", "view").distinct()
    return matched(rows.join(F.broadcast(touched), ["guest", "view"], "left_semi"), views, start, before, after)


def _of_topics(spark: SparkSession, snapshots: dict[str, int], views: list[Matches], erased: Erased) -> DataFrame:
    entities = {entity_of(topic) for topic in topics_of(views)}
    return archived(spark, {entity: snapshot for entity, snapshot in snapshots.items() if entity in entities}, erased)


def _reached(view: Matches, progress: Progress, partitions: list[int]) -> str:
    """SQL condition: the changes that a match of ``view`` can look at, told by columns that the archive has statistics
    of."""
    topics = "topic IN ({})".format(", ".join(f"'{topic}'" for topic in view.topics))
    if view.kept_seconds is None:
        return f"({topics})"
    kept = (view.kept_seconds + CLOCK_SLACK) * SECOND
    since = {partition: view.progress(progress, partition) - kept for partition in partitions}
    recent = " OR ".join(
        f"(kafka_partition = {partition} AND append_time >= timestamp_micros({time}))"
        for partition, time in since.items()
    )
    return f"({topics} AND ({recent}))"
