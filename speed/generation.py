"""Generations: one life of the speed application's code and state.

A generation begins at a vector, with empty state, and is *warm* from the first epoch that starts at or after its warm
vector: from there on it recognises every duplicate within the horizon. The served generation keeps serving until a
batch run picks a warm epoch of the new one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from changelog.erasures import last_number
from changelog.positions import Vector, from_json, to_json
from changelog.topics import offsets_at, start_offsets, topic_ids
from runtime.errors import ContractError
from runtime.ops import Connection
from runtime.settings import Settings
from runtime.version import code_version


@dataclass(frozen=True)
class Generation:
    """A row of ``generations``: what this life of the application is bound to."""

    pipeline: str
    number: int
    code_version: str
    start: Vector
    warm: Vector
    topic_ids: dict[str, str]
    horizon_seconds: int
    batch_services: tuple[str, ...] = ()
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
        row["erasures"],
    )


def begin(settings: Settings, connection: Connection, pipeline: str) -> Generation:
    """Begin the next generation: from the archived position minus the horizon, warm from the archived position on.

    Where nothing is archived yet that is the beginning of the log. It takes in every erasure that there is. Each call
    begins another one.
    """
    begun = start_offsets(settings)
    archived = connection.execute("SELECT * FROM archived").fetchall()
    start: Vector = {topic: dict(partitions) for topic, partitions in begun.items()}
    warm: Vector = {topic: dict(partitions) for topic, partitions in begun.items()}
    horizon = timedelta(seconds=settings.speed.horizon_seconds)
    for row in archived:
        topic, partition = row["topic"], row["kafka_partition"]
        if row["append_time"] is None or topic not in begun:
            continue
        first = begun[topic][partition]
        at = offsets_at(settings.kafka.bootstrap, topic, partition, row["append_time"] - horizon)
        start[topic][partition] = max(first, min(at, row["kafka_offset"]))
        warm[topic][partition] = first if start[topic][partition] == first == 0 else max(first, row["kafka_offset"])
    with connection.transaction():
        connection.execute("LOCK TABLE generations IN EXCLUSIVE MODE")
        last = newest(connection, pipeline)
        directories = (settings.home / "checkpoints" / pipeline).glob("[0-9]*")
        taken = [last.number if last else 0, *(int(path.name) for path in directories)]  # a restore may forget some
        connection.execute(
            "INSERT INTO generations (pipeline, generation, code_version, start_vector, warm_vector, topic_ids, "
            "horizon_seconds, batch_services, erasures) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                pipeline,
                max(taken) + 1,
                code_version(),
                json.dumps(to_json(start)),
                json.dumps(to_json(warm)),
                json.dumps(topic_ids(settings)),
                settings.speed.horizon_seconds,
                json.dumps(settings.speed.batch_services),
                last_number(connection),
            ),
        )
    created = newest(connection, pipeline)
    assert created is not None
    return created


def resume(settings: Settings, connection: Connection, pipeline: str, has_epochs: Callable[[int], bool]) -> Generation:
    """The generation to run: the newest one, or the first; another one if a guest has been erased since.

    ``has_epochs``: whether a generation has epochs in the speed table. Raises ContractError where going
    on would fold something else than what this generation began with.
    """
    generation = newest(connection, pipeline)
    if generation is None:
        return begin(settings, connection, pipeline)
    remedy = "begin a new generation beside the served one: anabranch generation new"
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
    checkpoint = generation.checkpoint(settings)
    if not any((checkpoint / "offsets").glob("[0-9]*")) and has_epochs(generation.number):
        raise ContractError(f"{where}: its checkpoint {checkpoint} is lost; {remedy}")
    if generation.erasures < last_number(connection):
        return begin(settings, connection, pipeline)
    return generation
