"""Names of the changelog topics, and the limits that ways in and ways out share."""

import pytest
from confluent_kafka import KafkaError

from changelog.topics import MAX_RECORD_BYTES, check_not_beyond, is_fatal
from runtime.errors import ContractError
from runtime.settings import ENTITIES, Settings, entity_of, topic_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("entity", ENTITIES)
def test_a_topic_names_its_entity(entity: str) -> None:
    assert topic_of(entity) == f"changelog.{entity}"
    assert entity_of(topic_of(entity)) == entity


def test_every_entity_has_its_topic() -> None:
    topics = Settings().topics
    assert topics == ("changelog.guest", "changelog.session", "changelog.order", "changelog.event")


def test_a_topic_takes_records_of_sixteen_megabytes() -> None:
    assert MAX_RECORD_BYTES == 16 * 1024 * 1024


def test_who_has_read_further_than_the_log_goes_is_stopped() -> None:
    ends = {"changelog.order": {0: 10, 1: 7}}
    check_not_beyond("somebody", {"changelog.order": {0: 10, 1: 0}}, ends)
    with pytest.raises(ContractError, match=r"somebody has read changelog\.order/1 up to 8, and it ends at 7"):
        check_not_beyond("somebody", {"changelog.order": {0: 10, 1: 8}}, ends)


def test_a_consumer_that_was_fenced_is_of_no_use_any_more() -> None:
    assert is_fatal(KafkaError(KafkaError._FATAL))
    assert is_fatal(KafkaError(KafkaError.FENCED_INSTANCE_ID, "fenced", True))
    assert not is_fatal(KafkaError(KafkaError._ALL_BROKERS_DOWN))
