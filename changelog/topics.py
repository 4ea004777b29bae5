"""The changelog topics: their settings, their contract, and where they begin and end."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from changelog.positions import Vector
from runtime.errors import ContractError, TransientError
from runtime.settings import Kafka, Settings

TIMEOUT = 30.0
MAX_RECORD_BYTES = 16 * 1024 * 1024


_LATER = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
"""What Kafka answers while it makes, or reads, the topic in which it keeps what groups have committed."""


def admin(settings: Settings) -> AdminClient:
    """A new admin client."""
    return AdminClient({**settings.kafka.client(), "socket.timeout.ms": 20_000, "log_level": 3})


def ensure_topics(
    settings: Settings, others: Iterable[str] = (), special: Mapping[str, Mapping[str, str]] | None = None
) -> list[str]:
    """Create the changelog topics that are missing, ``others`` like them, and ``special`` ones (topic → what its
    configuration has that theirs has not); return their names. A second call creates nothing.

    Raises ContractError if a changelog topic or a special one exists and is not as agreed (:func:`check_topics`).
    """
    special = special or {}
    wanted = {topic: special.get(topic, {}) for topic in (*settings.topics, *others, *special)}
    missing = create_topics(settings, wanted, settings.kafka.partitions)
    check_topics(settings, special)
    return missing


def create_topics(settings: Settings, wanted: Mapping[str, Mapping[str, str]], partitions: int) -> list[str]:
    """Create those of ``wanted`` (topic → what its configuration has beside what ours have) that are missing, and wait
    until the broker tells of them: its controller does so first. Returns their names.

    Raises KafkaException if Kafka does not answer, TransientError if it does not tell of them in time.
    """
    client, kafka = admin(settings), settings.kafka
    there = client.list_topics(timeout=TIMEOUT).topics
    missing = [topic for topic in wanted if topic not in there]
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(kafka.retention_ms),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(kafka.min_insync_replicas),
        "max.message.bytes": str(MAX_RECORD_BYTES),
    }
    new = [
        NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=kafka.replication_factor,
            config={**config, **wanted[topic]},
        )
        for topic in missing
    ]
    for future in client.create_topics(new).values() if new else ():
        future.result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while unseen := set(missing) - client.list_topics(timeout=TIMEOUT).topics.keys():
        if time.monotonic() > deadline:
            raise TransientError(f"Kafka at {kafka.bootstrap} does not tell of new topics: {sorted(unseen)}")
        time.sleep(0.05)
    return missing


def check_topics(settings: Settings, special: Mapping[str, Mapping[str, str]] | None = None) -> None:
    """Raise ContractError unless every changelog topic, and every special one (topic → its configuration), is there as
    agreed: number of partitions, append time, cleanup policy."""
    client = admin(settings)
    special = special or {}
    try:
        there = client.list_topics(timeout=TIMEOUT).topics
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    for topic in (*settings.topics, *special):
        if topic not in there:
            raise ContractError(f"topic {topic} does not exist; create it: anabranch up")
        found = len(there[topic].partitions)
        if found != settings.kafka.partitions:
            raise ContractError(
                f"topic {topic} has {found} partitions, agreed are {settings.kafka.partitions}. The number is a "
                "contract: keys would move between partitions. To grow, make new topics and fill them by replay"
            )
    agreed = {topic: {"message.timestamp.type": "LogAppendTime"} for topic in settings.topics} | {
        topic: {"cleanup.policy": config.get("cleanup.policy", "delete")} for topic, config in special.items()
    }
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in agreed]
    for resource, future in client.describe_configs(resources).items():
        found_config = future.result(TIMEOUT)
        for name, value in agreed[resource.name].items():
            if (kind := found_config[name].value) != value:
                raise ContractError(f"topic {resource.name} has {name}={kind}, agreed is {value}; set it back")


def delete_topics(settings: Settings, topics: Iterable[str]) -> None:
    """Delete those of ``topics`` that are there, and wait until they are gone."""
    client = admin(settings)
    wanted = set(topics)
    for future in client.delete_topics(sorted(wanted & client.list_topics(timeout=TIMEOUT).topics.keys())).values():
        future.result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while there := wanted & client.list_topics(timeout=TIMEOUT).topics.keys():
        if time.monotonic() > deadline:
            raise TransientError(f"Kafka does not delete {', '.join(sorted(there))}; run this again")
        time.sleep(0.1)


def delete_group(settings: Settings, group: str) -> None:
    """Let Kafka forget what a consumer group has committed. A second call finds nothing to do."""
    client = admin(settings)  # has to live as long as its futures
    try:
        client.delete_consumer_groups([group], request_timeout=TIMEOUT)[group].result(TIMEOUT)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise TransientError(f"the offsets of {group} cannot be deleted: {error}") from error


def topic_ids(settings: Settings, topics: Iterable[str] | None = None) -> dict[str, str]:
    """The id that Kafka gave each topic, by default of the changelog: another one means another topic of the same
    name."""
    client = admin(settings)  # has to live as long as its futures
    found = client.describe_topics(TopicCollection(list(settings.topics if topics is None else topics)))
    return {name: str(future.result(TIMEOUT).topic_id) for name, future in found.items()}


def committed_offsets(settings: Settings, group: str, topics: Iterable[str]) -> Vector:
    """The committed offsets of a consumer group, only of those topic-partitions that have one. What is in a transaction
    that has not ended does not count yet. Raises TransientError if Kafka does not answer."""
    places = [TopicPartition(topic, p) for topic in topics for p in range(settings.kafka.partitions)]
    # asked as a consumer: librdkafka's admin client crashes where the coordinator is still loading
    consumer = Consumer({
        **settings.kafka.client(), "group.id": group, "isolation.level": "read_uncommitted",
        "log_level": 3,
    })  # fmt: skip
    deadline = time.monotonic() + TIMEOUT
    try:
        found = None
        while found is None:
            try:
                found = consumer.committed(places, timeout=TIMEOUT)
            except KafkaException as error:
                if error.args[0].code() not in _LATER or time.monotonic() > deadline:
                    raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
                time.sleep(0.2)
    finally:
        consumer.close()
    vector: Vector = {}
    for place in found:
        if place.offset >= 0:
            vector.setdefault(place.topic, {})[place.partition] = place.offset
    return vector


def start_offsets(settings: Settings, topics: Iterable[str] | None = None) -> Vector:
    """The first offset that Kafka still has of every topic-partition; by default of the changelog."""
    return offsets(settings, OffsetSpec.earliest(), topics)


def end_offsets(settings: Settings, topics: Iterable[str] | None = None, client: AdminClient | None = None) -> Vector:
    """Up to where the log can be read now, of every topic-partition; by default of the changelog: the last stable
    offset. Everything before it is committed, aborted, or a marker; a transaction that is open lies behind it, with all
    that was written since. ``client`` saves whoever asks often a new connection."""
    return offsets(settings, OffsetSpec.latest(), topics, client)


def acknowledged_offsets(settings: Settings, topics: Iterable[str] | None = None) -> Vector:
    """The next offset after everything that was acknowledged, of every topic-partition; by default of the changelog:
    the high watermark. Beyond :func:`end_offsets` while a transaction is open."""
    return offsets(settings, OffsetSpec.latest(), topics, isolation=IsolationLevel.READ_UNCOMMITTED)


def offsets(
    settings: Settings,
    spec: OffsetSpec,
    topics: Iterable[str] | None = None,
    client: AdminClient | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> Vector:
    """What Kafka answers to ``spec`` for every topic-partition. Raises TransientError if it does not answer,
    ContractError if a topic is not there."""
    partitions = {
        TopicPartition(topic, partition): spec
        for topic in (settings.topics if topics is None else topics)
        for partition in range(settings.kafka.partitions)
    }
    vector: Vector = {}
    client = client or admin(settings)  # has to live as long as its futures
    try:
        found = client.list_offsets(partitions, isolation_level=isolation)
        for partition, future in found.items():
            vector.setdefault(partition.topic, {})[partition.partition] = future.result(TIMEOUT).offset
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ContractError(f"a topic is not there ({error}); create it: anabranch up") from error
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    return vector


_FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def is_fatal(error: KafkaError) -> bool:
    """Whether a client does nothing any more and another one has to be made: it was fenced, for instance, by the name
    that it had in a group before the broker died, or it may not do what it does. The client's own ``fatal()`` knows
    only errors that come alone."""
    return error.fatal() or error.code() in (KafkaError._FATAL, *_FORBIDDEN)


LOST_TAIL = (
    "the topic was made anew or its broker has lost acknowledged records: restore the topic, or begin a new home and "
    "fill its topics by replay"
)


def check_not_beyond(who: str, positions: Vector, ends: Vector) -> None:
    """Raise ContractError if a position lies behind the end of the log: other records will have its offsets."""
    beyond = [
        f"{topic}/{partition} up to {offset}, and it ends at {ends[topic][partition]}"
        for topic, partitions in sorted(positions.items())
        for partition, offset in sorted(partitions.items())
        if offset > ends[topic][partition]
    ]
    if beyond:
        raise ContractError(f"{who} has read {', '.join(beyond)}: {LOST_TAIL}")


def offsets_at(kafka: Kafka, topic: str, partition: int, time: datetime) -> int:
    """The first offset appended at or after ``time``; the end of the log if there is none."""
    # quiet: it is gone before its client knows whom to ask of the group, which nobody wants to know; errors are raised
    consumer = Consumer({**kafka.client(), "group.id": "anabranch-lookup", "log_level": 0})
    try:
        asked = TopicPartition(topic, partition, int(time.timestamp() * 1000))
        (found,) = consumer.offsets_for_times([asked], timeout=TIMEOUT)
        if found.offset >= 0:
            return int(found.offset)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)
        return int(end)
    finally:
        consumer.close()
