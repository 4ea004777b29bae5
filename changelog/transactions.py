"""Kafka's transactions, as the services that read, work out and write in one see them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from runtime.deadline import deadline
from runtime.errors import TransientError
from runtime.settings import Settings

TIMEOUT = 60.0
"""How long Kafka may take for one step of a transaction, in seconds."""

FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


@contextmanager
def answering(settings: Settings) -> Iterator[None]:
    """Errors of Kafka's as ours: TransientError."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in FENCED:
            raise TransientError(f"another instance of the service has taken over: {error}") from error
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} did not take part: {error}") from error


def send_offsets(producer: Producer, offsets: Sequence[TopicPartition], group: object) -> None:
    """Put offsets into the transaction that is open. Raises KafkaException.

    The client ignores the timeout of this call where the group's coordinator is away, and may wait for good
    (https://github.com/confluentinc/librdkafka/issues/5456): the process ends then, as :func:`deadline` does.
    """
    with deadline(1.5 * TIMEOUT, "putting offsets into a transaction"):
        producer.send_offsets_to_transaction(list(offsets), group, TIMEOUT)
