"""Generations: one life of the speed application's code and state.

A generation begins at a vector, with empty state, and is *warm* from the first epoch that starts at or after its warm
vector: from there on it recognises every duplicate within the horizon. The served generation keeps serving until a
batch run picks a warm epoch of the new one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from changelog.erasures import last_number
from changelog.positions import Vector, from_json, to_json
from changelog.topics import offsets_at, start_offsets, topic_ids
from runtime.errors import ArchiveBehindError, ContractError, LostStateError
from runtime.ops import Connection
from runtime.settings import Settings
from runtime.version import code_version

CHECKPOINT, HISTORIES, EPOCHS, RETENTION = "checkpoint", "histories", "epochs", "retention"
"""Causes for which a generation is begun: what the one before has lost. ``epochs``: rows of the speed table;
``retention``: records that Kafka let go of before the stream had read them."""

BEGIN_ANEW = "begin a new generation beside the served one: anabranch generation new"


@dataclass(frozen=True)
class Generation:
    """A row of ``generations``: what this life of the application is bound to. ``cause``, ``reason``: what was lost, if
    the application began it by itself."""

    pipeline: str
    number: int
    code_version: str
    start: Vector
    warm: Vector
    topic_ids: dict[str, str]
    horizon_seconds: int
    batch_services: tuple[str, ...] = ()
    cause: str | None = None
    reason: str | None = None
    erasures: int = 0

    def checkpoint(self, settings: Settings) -> Path:
        """Spark's checkpoint, on local disk (object stores have no atomic rename)."""
        return settings.home / "checkpoints" / self.pipeline / str(self.number)

    def identities(self, settings: Settings) -> Path:
        """Where the stores of duplicate detection are: a cache of the log, beside the checkpoint."""
        return settings.home / "identities" / self.pipeline / str(self.number)

    def histories(self, settings: Settings) -> Path:
        """Where the histories of guests are, for the views of matches: state, beside the checkpoint."""
        return settings.home / "histories" / self.pipeline / str(self.number)


def newest(connection: Connection, pipeline: str) -> Generation | None:
    """The generation begun last, or None before the first."""
    row = connection.execute(
        "SELECT * FROM generations WHERE pipeline = %s ORDER BY generation DESC LIMIT 1", (pipeline,)
    ).fetchone()
    if row is None:
        return None
    return Generation(
        pipeline,
        row["generation"],
        row["code_version"],
        from_json(row["start_vector"]),
        from_json(row["warm_vector"]),
        row["topic_ids"],
        row["horizon_seconds"],
        tuple(row["batch_services"]),
        row["cause"],
        row["reason"],
        row["erasures"],
    )


def begin(
    settings: Settings,
    connection: Connection,
    pipeline: str,
    after: Generation | None = None,
    lost: LostStateError | None = None,
) -> Generation:
    """Begin the next generation: from the archived position minus the horizon, warm from the archived position on.

    Where nothing is archived yet that is the beginning of the log. It takes in every erasure that there is. Each call
    begins another one, unless it is to come ``after`` one that has a successor already: then it returns that one.
    ``lost``: what the new one makes anew; it is noted with it, and told as an alert. Raises what
    :func:`check_archive_reaches` raises.
    """
    begun = start_offsets(settings)
    check_archive_reaches(connection, begun)
    archived = connection.execute("SELECT * FROM archived").fetchall()
    start: Vector = {topic: dict(partitions) for topic, partitions in begun.items()}
    warm: Vector = {topic: dict(partitions) for topic, partitions in begun.items()}
    horizon = timedelta(seconds=settings.speed.horizon_seconds)
    for row in archived:
        topic, partition = row["topic"], row["kafka_partition"]
        if row["append_time"] is None or topic not in begun:
            continue
        first = begun[topic][partition]
        at = offsets_at(settings.kafka, topic, partition, row["append_time"] - horizon)
        start[topic][partition] = max(first, min(at, row["kafka_offset"]))
        warm[topic][partition] = first if start[topic][partition] == first == 0 else max(first, row["kafka_offset"])
    with connection.transaction():
        connection.execute("LOCK TABLE generations IN EXCLUSIVE MODE")
        last = newest(connection, pipeline)
        if after is not None and last is not None and last.number != after.number:
            return last
        directories = (settings.home / "checkpoints" / pipeline).glob("[0-9]*")
        taken = [last.number if last else 0, *(int(path.name) for path in directories)]  # a restore may forget some
        connection.execute(
            "INSERT INTO generations (pipeline, generation, code_version, start_vector, warm_vector, topic_ids, "
            "horizon_seconds, batch_services, cause, reason, erasures) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                pipeline,
                max(taken) + 1,
                code_version(),
                json.dumps(to_json(start)),
                json.dumps(to_json(warm)),
                json.dumps(topic_ids(settings)),
                settings.speed.horizon_seconds,
                json.dumps(settings.speed.batch_services),
                lost and lost.cause,
                lost and str(lost),
                last_number(connection),
            ),
        )
    created = newest(connection, pipeline)
    assert created is not None
    return created


def renew(settings: Settings, connection: Connection, generation: Generation, lost: LostStateError) -> Generation:
    """Begin the generation that makes anew what ``generation`` has lost, or return the one that somebody has begun
    meanwhile. Killed at any point, the next call goes on.

    Raises ContractError, with the command, if one was begun for the same cause within ``speed.renew_pause_seconds``:
    what takes the state away is still there. Raises what :func:`check_archive_reaches` raises.
    """
    before = connection.execute(
        "SELECT generation, to_char(created_at AT TIME ZONE 'UTC', 'HH24:MI:SS') AS at FROM generations WHERE "
        "pipeline = %s AND cause = %s AND created_at > now() - make_interval(secs => %s) ORDER BY generation DESC",
        (generation.pipeline, lost.cause, settings.speed.renew_pause_seconds),
    ).fetchone()
    if before is not None and before["generation"] <= generation.number:
        raise ContractError(
            f"{lost}; generation {before['generation']} was begun at {before['at']} UTC for the same cause "
            f"({lost.cause}), so something takes the state away again and again: find out what, then {BEGIN_ANEW}"
        )
    return begin(settings, connection, generation.pipeline, generation, lost)


def check_archive_reaches(connection: Connection, starts: Vector) -> None:
    """Raise unless everything before ``starts``, where Kafka's log begins, is archived: what lies between would be in
    nobody's view of the past. Raises what :func:`refuse_gap` raises."""
    reached: Vector = {}
    for row in connection.execute("SELECT topic, kafka_partition, kafka_offset FROM archived").fetchall():
        reached.setdefault(row["topic"], {})[row["kafka_partition"]] = row["kafka_offset"]
    report = connection.execute("SELECT detail -> 'lost' AS lost FROM runs WHERE run_id = ':ingest'").fetchone()
    refuse_gap(reached, starts, report["lost"] if report else [])


def refuse_gap(reached: Vector, starts: Vector, lost: Sequence[str]) -> None:
    """Raise if the archive, which reaches up to ``reached``, lacks something that lies before ``starts``. ``lost``:
    what the last ingest found that no object holds (``topic/partition/first-last``).

    Raises ArchiveBehindError while an ingest may bring it, ContractError where it is lost; both name the command.
    """
    behind = {
        (topic, partition): (at, start)
        for topic, partitions in sorted(starts.items())
        for partition, start in sorted(partitions.items())
        if (at := reached.get(topic, {}).get(partition, 0)) < start
    }
    if not behind:
        return
    said = ", ".join(f"{topic}/{number} from {at} to {start - 1}" for (topic, number), (at, start) in behind.items())
    holes = [hole for hole in lost if _begins_in(hole, behind)]
    if holes:
        raise ContractError(
            f"the speed layer cannot begin: Kafka does not have {said} any more, and no object of the archive has "
            f"{', '.join(holes)}. Restore the objects and run anabranch batch, or declare them lost: anabranch batch "
            f"{' '.join(f'--accept-hole {hole}' for hole in holes)}; then anabranch up"
        )
    raise ArchiveBehindError(
        f"the speed layer waits: Kafka does not have {said} any more, and it is not ingested yet; the DAG batch_views "
        "ingests it, or anabranch batch"
    )


def _begins_in(hole: str, behind: Mapping[tuple[str, int], tuple[int, int]]) -> bool:
    """Whether a hole (``topic/partition/first-last``) begins in one of the stretches."""
    topic, partition, offsets = hole.split("/")
    at, start = behind.get((topic, int(partition)), (0, 0))
    return at <= int(offsets.partition("-")[0]) < start


def resume(settings: Settings, connection: Connection, pipeline: str) -> Generation:
    """The generation to run: the newest one, or the first; another one if a guest has been erased since.

    Raises ContractError where going on would fold something else than what this generation began with: that was meant
    by somebody, or has to be.
    """
    generation = newest(connection, pipeline)
    if generation is None:
        return begin(settings, connection, pipeline)
    remedy = BEGIN_ANEW
    where = f"pipeline {pipeline}, generation {generation.number}"
    if generation.code_version != code_version():
        raise ContractError(
            f"{where} was begun by code {generation.code_version} and this is {code_version()}; {remedy}"
        )
    if generation.topic_ids != topic_ids(settings):
        raise ContractError(f"{where}: topics have been made anew since it began ({generation.topic_ids}); {remedy}")
    if generation.horizon_seconds != settings.speed.horizon_seconds:
        raise ContractError(
            f"{where} keeps duplicates for {generation.horizon_seconds} s, the settings say "
            f"{settings.speed.horizon_seconds} s; change the setting back, or {remedy}"
        )
    if set(generation.batch_services) != set(settings.speed.batch_services):
        raise ContractError(
            f"{where} leaves {list(generation.batch_services)} to the batch layer, the settings say "
            f"{list(settings.speed.batch_services)}; change the setting back, or {remedy}"
        )
    if generation.erasures < last_number(connection):
        return begin(settings, connection, pipeline, generation)
    return generation
