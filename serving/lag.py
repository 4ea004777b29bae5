"""Lag and freshness: how far archiver, derive, speed layer, ingest and boundary are behind the log, and capture behind
its stream, in records and seconds.

Measured into ``ops.lag``, a row for each component and topic-partition. Positions are read where each component tells
them: the heartbeats of cdc, derive and speed layer (Spark's progress, from its listener), what the archivers' group has
committed (there may be several, or Secor), the archived positions, the served vectors. ``behind_seconds`` is the age,
by the broker's clock, of the first record not yet passed.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Consumer, TopicPartition

from changelog.archive.position import stored_offsets
from changelog.derived import DERIVED
from changelog.positions import Vector, from_json
from changelog.sources.cdc import stream
from changelog.topics import end_offsets, start_offsets
from runtime import ops
from runtime.ops import Connection
from runtime.settings import Settings, entity_of
from serving.published import current

COMPONENTS = ("cdc", "archiver", "derive", "speed", "ingest", "boundary")
"""In the order in which a record passes them. ``cdc`` reads the captured stream, the others the changelog;
``boundary``: the oldest of what is served."""

POSITION = {"cdc": "committed", "derive": "committed", "speed": "end"}
"""In which field of its heartbeat a service says how far it is."""

PATIENCE = 10.0


@dataclass(frozen=True)
class Lag:
    """One component at one topic-partition. ``behind_seconds``: None if the record that waits could not be read."""

    component: str
    topic: str
    partition: int
    offset: int
    end: int
    behind_seconds: float | None

    @property
    def records(self) -> int:
        return max(0, self.end - self.offset)


def measure(settings: Settings) -> list[Lag]:
    """Measure now, note it in ``ops.lag``, and return it. Raises TransientError if Kafka or PostgreSQL is away."""
    with ops.connect(settings) as connection:
        positions = read_positions(settings, connection)
        ends, starts = end_offsets(settings), start_offsets(settings)
        if "cdc" in positions:
            first, end = stream.bounds(settings)
            starts[stream.TOPIC], ends[stream.TOPIC] = {0: first}, {0: end}
        waiting = {
            (topic, partition, max(positions[name].get(topic, {}).get(partition, 0), starts[topic][partition]))
            for name in positions
            for topic, partitions in ends.items()
            if _reads(name, topic)
            for partition, end in partitions.items()
            if positions[name].get(topic, {}).get(partition, 0) < end
        }
        appended = append_times(settings, waiting)
        now = datetime.now(UTC)
        found = []
        for name, vector in positions.items():
            for topic, partitions in ends.items():
                for partition, end in partitions.items() if _reads(name, topic) else ():
                    offset = vector.get(topic, {}).get(partition, 0)
                    at = appended.get((topic, partition, max(offset, starts[topic][partition])))
                    behind = 0.0 if offset >= end else (now.timestamp() - at if at else None)
                    found.append(Lag(name, topic, partition, offset, end, behind))
        for lag in found:
            connection.execute(
                "INSERT INTO lag VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (now, lag.component, lag.topic, lag.partition, lag.offset, lag.end, lag.records, lag.behind_seconds),
            )
        connection.execute(
            "DELETE FROM lag WHERE measured_at < %s::timestamptz - make_interval(days => %s)",
            (now, settings.watch.keep_days),
        )
    return found


def _reads(component: str, topic: str) -> bool:
    if topic == stream.TOPIC or component == "cdc":
        return component == "cdc" and topic == stream.TOPIC
    return component != "derive" or entity_of(topic) in DERIVED


def read_positions(settings: Settings, connection: Connection) -> dict[str, Vector]:
    """How far each component is. One that says nothing, because it is starting, is left out."""
    said = {
        row["name"]: row["detail"]
        for row in connection.execute(
            "SELECT name, detail FROM services WHERE name = ANY(%s)", (list(POSITION),)
        ).fetchall()
    }
    archived: Vector = {}
    for row in connection.execute("SELECT topic, kafka_partition, kafka_offset FROM archived").fetchall():
        archived.setdefault(row["topic"], {})[row["kafka_partition"]] = row["kafka_offset"]
    boundary: Vector = {}
    for view in current(connection):
        for topic, partitions in view.vector.items():
            for partition, offset in partitions.items():
                known = boundary.setdefault(topic, {})
                known[partition] = min(offset, known.get(partition, offset))
    heard: dict[str, Vector] = {}
    for name, field in POSITION.items():
        if (said.get(name) or {}).get(field):
            heard[name] = from_json(said[name][field])
    if stored := stored_offsets(settings):
        heard["archiver"] = stored
    return {**heard, "ingest": archived, "boundary": boundary}


def append_times(settings: Settings, places: set[tuple[str, int, int]]) -> dict[tuple[str, int, int], float]:
    """The append time (seconds since 1970) of the first record at or after each (topic, partition, offset).

    A place behind which only transaction markers wait is left out.
    """
    found: dict[tuple[str, int, int], float] = {}
    todo = sorted(places)
    consumer = Consumer(
        {
            **settings.kafka.client(),
            "group.id": "anabranch-watch",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 3,
        }
    )
    try:
        while todo:
            asked: dict[tuple[str, int], tuple[str, int, int]] = {}
            for place in todo:
                asked.setdefault(place[:2], place)  # a partition is read at one place at a time
            todo = [place for place in todo if asked[place[:2]] != place]
            consumer.assign([TopicPartition(*place) for place in asked.values()])
            deadline = time.monotonic() + PATIENCE
            while asked and time.monotonic() < deadline:
                for message in consumer.consume(len(asked), 1.0):
                    answered = (message.topic() or "", message.partition() or 0)
                    if answered in asked:  # or it is the second record of a partition
                        place = asked.pop(answered)
                        if message.error() is None:
                            found[place] = message.timestamp()[1] / 1000
    finally:
        consumer.close()
    return found


def retention_used(settings: Settings, lags: list[Lag]) -> float:
    """The age of the boundary as a share of Kafka's retention: at 1 Kafka begins to let go of what only it has."""
    ages = [lag.behind_seconds or 0.0 for lag in lags if lag.component == "boundary"]
    return max(ages, default=0.0) * 1000 / settings.kafka.retention_ms
