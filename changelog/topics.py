"""The changelog topics: their settings, their contract, and where they begin and end."""

from collections.abc import Iterable
from datetime import datetime

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from changelog.positions import Vector
from runtime.errors import ContractError, TransientError
from runtime.settings import Settings

TIMEOUT = 30.0
MAX_RECORD_BYTES = 16 * 1024 * 1024


def admin(settings: Settings) -> AdminClient:
    """A new admin client."""
    return AdminClient({"bootstrap.servers": settings.kafka.bootstrap, "socket.timeout.ms": 20_000, "log_level": 3})


def ensure_topics(settings: Settings, others: Iterable[str] = ()) -> list[str]:
    """Create the changelog topics, and ``others`` like them, that are missing; return their names. A second call
    creates nothing.

    Raises ContractError if one exists with another number of partitions or without the broker's timestamps.
    """
    client = admin(settings)
    there = client.list_topics(timeout=TIMEOUT).topics
    kafka = settings.kafka
    missing = [topic for topic in (*settings.topics, *others) if topic not in there]
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(kafka.retention_ms),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(kafka.min_insync_replicas),
        "max.message.bytes": str(MAX_RECORD_BYTES),
    }
    new = [
        NewTopic(topic, num_partitions=kafka.partitions, replication_factor=kafka.replication_factor, config=config)
        for topic in missing
    ]
    for future in client.create_topics(new).values() if new else ():
        future.result(TIMEOUT)
    check_topics(settings)
    return missing


def check_topics(settings: Settings) -> None:
    """Raise ContractError unless every changelog topic is there as agreed: partitions and append time."""
    client = admin(settings)
    try:
        there = client.list_topics(timeout=TIMEOUT).topics
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    for topic in settings.topics:
        if topic not in there:
            raise ContractError(f"topic {topic} does not exist; create it: anabranch up")
        found = len(there[topic].partitions)
        if found != settings.kafka.partitions:
            raise ContractError(
                f"topic {topic} has {found} partitions, agreed are {settings.kafka.partitions}. The number is a "
                "contract: keys would move between partitions. To grow, make new topics and fill them by replay"
            )
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in settings.topics]
    for resource, future in client.describe_configs(resources).items():
        kind = future.result(TIMEOUT)["message.timestamp.type"].value
        if kind != "LogAppendTime":
            raise ContractError(
                f"topic {resource.name} has message.timestamp.type={kind}, agreed is LogAppendTime; set it back"
            )


def topic_ids(settings: Settings) -> dict[str, str]:
    """The id that Kafka gave each changelog topic: another one means another topic of the same name."""
    client = admin(settings)  # has to live as long as its futures
    found = client.describe_topics(TopicCollection(list(settings.topics)))
    return {name: str(future.result(TIMEOUT).topic_id) for name, future in found.items()}


def start_offsets(settings: Settings) -> Vector:
    """The first offset that Kafka still has of every topic-partition."""
    return _list(settings, OffsetSpec.earliest())


def end_offsets(settings: Settings) -> Vector:
    """The next offset after everything acknowledged and committed, of every topic-partition."""
    return _list(settings, OffsetSpec.latest())


def _list(settings: Settings, spec: OffsetSpec) -> Vector:
    partitions = {
        TopicPartition(topic, partition): spec
        for topic in settings.topics
        for partition in range(settings.kafka.partitions)
    }
    vector: Vector = {}
    client = admin(settings)  # has to live as long as its futures
    try:
        found = client.list_offsets(partitions, isolation_level=IsolationLevel.READ_COMMITTED)
        for partition, future in found.items():
            vector.setdefault(partition.topic, {})[partition.partition] = future.result(TIMEOUT).offset
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    return vector


def offsets_at(bootstrap: str, topic: str, partition: int, time: datetime) -> int:
    """The first offset appended at or after ``time``; the end of the log if there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "anabranch-lookup"})
    try:
        asked = TopicPartition(topic, partition, int(time.timestamp() * 1000))
        (found,) = consumer.offsets_for_times([asked], timeout=TIMEOUT)
        if found.offset >= 0:
            return int(found.offset)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)
        return int(end)
    finally:
        consumer.close()
