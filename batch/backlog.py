"""Whether there is anything for a batch run to do, without Spark."""

from changelog.archive.position import stored_offsets
from changelog.positions import Vector, covers, from_json
from runtime import ops
from runtime.ops import Connection
from runtime.settings import Settings


def has_work(settings: Settings) -> bool:
    """Whether the archiver has committed more than what is served was built from, or what is served stands on a
    generation that the speed layer no longer runs.

    While a rollback holds publication, only what is not ingested yet counts. Raises TransientError if the database or
    Kafka is not there.
    """
    with ops.connect(settings) as connection:
        done = archived_vector(connection)
        if connection.execute("SELECT 1 FROM holds").fetchone() is None:
            if stands_on_an_earlier(connection):
                return True
            done = least([done, *served_vectors(connection)])
        return not covers(done, stored_offsets(settings))


def archived_vector(connection: Connection) -> Vector:
    """The archived position as the last ingest noted it; empty before the first."""
    vector: Vector = {}
    for row in connection.execute("SELECT topic, kafka_partition, kafka_offset FROM archived").fetchall():
        vector.setdefault(row["topic"], {})[row["kafka_partition"]] = row["kafka_offset"]
    return vector


def served_vectors(connection: Connection) -> list[Vector]:
    """For each view that is served: up to where its batch side was folded."""
    return [from_json(row["vector"]) for row in connection.execute("SELECT vector FROM served").fetchall()]


def stands_on_an_earlier(connection: Connection) -> bool:
    """Whether a view that is served stands on another generation than the newest: its speed side stands still."""
    row = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM served s "
        "WHERE s.generation < (SELECT max(g.generation) FROM generations g WHERE g.pipeline = s.pipeline)) AS earlier"
    ).fetchone()
    return row == {"earlier": True}


def least(vectors: list[Vector]) -> Vector:
    """The position that all of ``vectors`` cover. A topic-partition that one of them lacks is left out:
    it stands at 0."""
    if not vectors:
        return {}
    first, *others = vectors
    return {
        topic: {
            partition: min([offset, *(other[topic][partition] for other in others)])
            for partition, offset in partitions.items()
            if all(partition in other.get(topic, {}) for other in others)
        }
        for topic, partitions in first.items()
    }
