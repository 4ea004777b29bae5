"""The part of the producer that needs no Kafka."""

import pytest
from confluent_kafka import KafkaException, Producer

from changelog.producer import PARTITIONER, Record

pytestmark = pytest.mark.unit


def test_keys_go_where_java_puts_them() -> None:
    assert PARTITIONER == "murmur2_random"


def test_the_client_library_knows_the_partitioner() -> None:
    assert len(Producer({"partitioner": PARTITIONER})) == 0
    with pytest.raises(KafkaException):
        Producer({"partitioner": PARTITIONER + "?"})


def test_a_record_is_topic_key_and_value() -> None:
    assert Record("changelog.order", b"g-1", None) == ("changelog.order", b"g-1", None)
