"""The views of matches in the batch layer: the same functions as in the stream, over histories from the archive."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from batch.archive_table import changes
from batch.raw import raw_changes
from changelog.archive.columnar import archived, below
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
) -> DataFrame:
    """The matches (``MATCHED_DDL``) that the log has below ``end`` and did not have below ``start``.

    ``objects``: from the raw objects. What is read of the archive reaches back from ``start`` as far as a match does;
    of guests of whom nothing is new and no time is up nothing is looked at.
    """
    nothing: Vector = {topic: dict.fromkeys(partitions, 0) for topic, partitions in end.items()}
    before, after = (_progress(spark, snapshots, views, at) for at in (start, end))
    read = raw_changes(spark, settings, snapshots, nothing, end) if objects else changes(spark, snapshots, nothing, end)
    rows = sides(read, views)
    if start != nothing:
        reached = [
            f"(view = '{view.name}'" + (f" AND time >= {_oldest(view, before, end)})" if view.kept_seconds else ")")
            for view in views
        ]
        due = [
            f"(view = '{view.name}' AND time >= {_known(view, before, end) - trigger.after_seconds * SECOND})"
            for view in views
            for trigger in view.triggers.values()
            if trigger.after_seconds
        ]
        rows = rows.where(" OR ".join(reached)).persist()
        touched = rows.where(" OR ".join([f"NOT ({below(start)})", *due])).select("guest", "view").distinct()
        rows = rows.join(F.broadcast(touched), ["guest", "view"], "left_semi")
    return matched(rows, views, start, before, after)


def _progress(spark: SparkSession, snapshots: dict[str, int], views: list[Matches], at: Vector) -> Progress:
    entities = {entity_of(topic) for topic in topics_of(views)}
    there = {entity: snapshot for entity, snapshot in snapshots.items() if entity in entities}
    return progress_of(archived(spark, there).where(below(at)))


def _known(view: Matches, progress: Progress, end: Vector) -> int:
    """The time that every partition has reached."""
    partitions = {partition for topic in view.topics for partition in end[topic]}
    return min(view.progress(progress, partition) for partition in partitions)


def _oldest(view: Matches, progress: Progress, end: Vector) -> int:
    return _known(view, progress, end) - ((view.kept_seconds or 0) + CLOCK_SLACK) * SECOND
