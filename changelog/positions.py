"""Positions in the log: a vector is the next offset of each topic-partition."""

from collections.abc import Mapping

Vector = dict[str, dict[int, int]]
"""topic → partition → next offset."""


def covers(a: Vector, b: Vector) -> bool:
    """Whether ``a`` is at or after ``b`` in every topic-partition of ``b``. One that ``a`` lacks stands at 0."""
    return all(
        a.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in b.items()
        for partition, offset in partitions.items()
    )


def highest(a: Vector, b: Vector) -> Vector:
    """The higher of the two in every topic-partition of ``a``; what only ``b`` has is left out."""
    return {
        topic: {p: max(offset, b.get(topic, {}).get(p, 0)) for p, offset in partitions.items()}
        for topic, partitions in a.items()
    }


def to_json(vector: Vector) -> dict[str, dict[str, int]]:
    """The form that Spark uses for Kafka offsets: ``{"topic": {"0": 12}}``."""
    return {
        topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for topic, partitions in sorted(vector.items())
    }


def from_json(value: Mapping[str, Mapping[str, int]]) -> Vector:
    """Inverse of :func:`to_json`."""
    return {
        topic: {int(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in value.items()
    }
