"""The captured stream as a topic: ``cdc.shop``, one partition, so that its order is that of the database's commits."""

import json
import uuid

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from changelog.topics import TIMEOUT, admin, create_topics
from runtime.errors import ContractError, TransientError
from runtime.settings import Settings

TOPIC = "cdc.shop"
GROUP = "anabranch-cdc"
"""Consumer group of the mapper; beside each committed offset stands what else has to be known to go on."""


def ensure_topic(settings: Settings) -> None:
    """Create the topic where it is missing. Raises ContractError unless it has one partition and the broker's time."""
    client = admin(settings)
    try:
        if create_topics(settings, {TOPIC: {}}, partitions=1):
            return
        there = client.list_topics(timeout=TIMEOUT).topics
        resource = ConfigResource(ResourceType.TOPIC, TOPIC)
        kind = client.describe_configs([resource])[resource].result(TIMEOUT)["message.timestamp.type"].value
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    if len(there[TOPIC].partitions) != 1 or kind != "LogAppendTime":
        raise ContractError(
            f"topic {TOPIC} has {len(there[TOPIC].partitions)} partitions and message.timestamp.type={kind}, agreed "
            "are 1 and LogAppendTime: delete it and run anabranch up, anabranch cdc anew"
        )


def announce(settings: Settings) -> int:
    """Say in the stream that what follows comes from another slot: a life begins. Returns the offset of the record.

    To be called while nobody else writes to the stream.
    """
    offsets: list[int] = []
    producer = Producer({**settings.kafka.client(), "acks": "all", "log_level": 3})
    value = json.dumps({"life": uuid.uuid4().hex[:8]}).encode()
    producer.produce(TOPIC, value=value, partition=0, on_delivery=lambda _, m: offsets.append(m.offset() or 0))
    if producer.flush(TIMEOUT) or not offsets:
        raise TransientError(f"{TOPIC}: Kafka at {settings.kafka.bootstrap} does not take a record; run this again")
    return offsets[0]


def bounds(settings: Settings) -> tuple[int, int]:
    """The first offset that Kafka still has of the stream, and the one after the last."""
    consumer = _consumer(settings)
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=TIMEOUT)
        return int(first), int(end)
    except KafkaException as error:
        raise TransientError(f"{TOPIC}: Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    finally:
        consumer.close()


def committed(settings: Settings) -> tuple[int, str] | None:
    """The offset that the mapper committed last and what stands beside it; None if there is none."""
    consumer = _consumer(settings)
    try:
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=TIMEOUT)
        return None if found.offset < 0 else (int(found.offset), found.metadata or "")
    except KafkaException as error:
        raise TransientError(f"{TOPIC}: Kafka at {settings.kafka.bootstrap} does not answer: {error}") from error
    finally:
        consumer.close()


def commit(settings: Settings, offset: int) -> None:
    """Let the mapper begin at ``offset``, knowing nothing. To be called while it does not run."""
    consumer = _consumer(settings)
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    except KafkaException as error:
        raise TransientError(f"{TOPIC}: the offset of {GROUP} was not taken: {error}") from error
    finally:
        consumer.close()


def _consumer(settings: Settings) -> Consumer:
    return Consumer(
        {
            **settings.kafka.client(),
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 3,
        }
    )
