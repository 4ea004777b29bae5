"""Dead letters as the layers keep them: which there are, where each is kept, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from changelog.dead_letters import DeadLetter
from changelog.records import Place
from changelog.topics import start_offsets
from runtime import trino
from runtime.errors import TerminalError
from runtime.settings import Settings, entity_of
from serving.whole_log import AT_ONCE, chunks


class State(StrEnum):
    """Whether a dead letter has been brought back."""

    all = "all"
    open = "open"
    replayed = "replayed"


@dataclass(frozen=True)
class Wanted:
    """Which dead letters are asked for. ``reason``: a part of it, upper or lower case."""

    topic: str | None = None
    reason: str | None = None
    since: datetime | None = None
    state: State = State.all

    @property
    def condition(self) -> str:
        """As SQL over ``ops.bad_records``."""
        parts = ["true"]
        if self.topic is not None:
            parts.append(f"topic = {trino.literal(self.topic)}")
        if self.reason is not None:
            parts.append(f"strpos(lower(reason), lower({trino.literal(self.reason)})) > 0")
        if self.since is not None:
            parts.append(f"append_time >= {trino.literal(self.since)}")
        if self.state is not State.all:
            parts.append(f"replayed_at IS {'NOT ' if self.state is State.replayed else ''}NULL")
        return " AND ".join(parts)


@dataclass(frozen=True)
class Listed:
    """A dead letter without its value, which has ``size`` bytes. ``replayed_to``: topic/partition/offset, or None."""

    place: Place
    reason: str
    append_time: datetime
    key: bytes | None
    size: int
    archived: bool
    replayed_to: str | None
    replayed_at: datetime | None


def listed(settings: Settings, wanted: Wanted, limit: int | None = None) -> tuple[int, list[Listed]]:
    """How many dead letters there are, and the newest ``limit`` of them (all by default), newest first."""
    first = f" LIMIT {limit}" if limit is not None else ""
    _, rows = trino.execute(
        trino.connect(settings),
        "SELECT count(*) OVER (), topic, kafka_partition, kafka_offset, reason, append_time, key, length(value), "
        f"archived, replayed_to, replayed_at FROM lake.ops.bad_records WHERE {wanted.condition} "
        f"ORDER BY append_time DESC, topic, kafka_partition, kafka_offset DESC{first}",
    )
    found = [Listed(Place(*row[1:4]), *row[4:]) for row in rows]
    return (rows[0][0] if rows else 0), found


def letters(settings: Settings, wanted: Wanted) -> list[DeadLetter]:
    """The dead letters whole, in the order of the log."""
    return _letters(settings, wanted.condition)


def _letters(settings: Settings, condition: str) -> list[DeadLetter]:
    _, rows = trino.execute(
        trino.connect(settings),
        "SELECT topic, kafka_partition, kafka_offset, reason, append_time, key, value FROM lake.ops.bad_records "
        f"WHERE {condition} ORDER BY topic, kafka_partition, kafka_offset",
    )
    return [DeadLetter(Place(*row[:3]), *row[3:]) for row in rows]


def letter(settings: Settings, place: Place) -> tuple[DeadLetter, Listed, list[str]]:
    """One dead letter: whole, what became of it, and where it is kept.

    Raises TerminalError if the layers know of none at that place.
    """
    found = _letters(settings, _at([place]))
    if not found:
        raise TerminalError(
            f"there is no dead letter at {place}, as far as the layers have come: anabranch dead-letters list"
        )
    lake = trino.connect(settings)
    _, rows = trino.execute(
        lake, f"SELECT archived, replayed_to, replayed_at FROM lake.ops.bad_records WHERE {_at([place])}"
    )
    archived, replayed_to, replayed_at = rows[0]
    _, epochs = trino.execute(
        lake,
        "SELECT generation, epoch FROM lake.speed.main s WHERE s.view = 'bad' AND "
        f"{_at([place], 's.bad.')} ORDER BY 1, 2",
    )
    kept = [f"lake.speed.main (generation {generation}, epoch {epoch})" for generation, epoch in epochs]
    if archived:
        kept.insert(0, f"lake.archive.{entity_of(place.topic)}")
    if place.offset >= start_offsets(settings, [place.topic])[place.topic][place.partition]:
        kept.append(f"Kafka, {place}")
    one = found[0]
    summary = Listed(place, one.reason, one.append_time, one.key, len(one.value), archived, replayed_to, replayed_at)
    return one, summary, kept


def appended(settings: Settings, places: Sequence[Place]) -> dict[Place, datetime]:
    """When each of ``places`` was appended; those at which there is no dead letter are left out."""
    lake = trino.connect(settings)
    found: dict[Place, datetime] = {}
    for some in chunks(places, AT_ONCE):
        _, rows = trino.execute(
            lake,
            f"SELECT topic, kafka_partition, kafka_offset, append_time FROM lake.ops.bad_records WHERE {_at(some)}",
        )
        found |= {Place(*row[:3]): row[3] for row in rows}
    return found


def _at(places: Sequence[Place], of: str = "") -> str:
    rows = ", ".join(f"({trino.literal(place.topic)}, {place.partition}, {place.offset})" for place in places)
    return f"({of}topic, {of}kafka_partition, {of}kafka_offset) IN ({rows})"
