"""What follows from a change, and what says where it came from."""

import pytest

from changelog.changes import Change
from changelog.derived import DERIVED, derive, derived_topics, latest_topic, patch_topic, source_of
from changelog.envelope import encode, envelope
from changelog.exact import parse
from changelog.reader import Entry
from changelog.topics import MAX_RECORD_BYTES
from runtime.errors import ContractError
from runtime.settings import Settings
from tests.unit.changelog.samples import KEY, SAMPLES, change

pytestmark = pytest.mark.unit


def read(entity: str, value: bytes) -> Change:
    """A change as it was read from its topic."""
    return Change(entity, Entry(f"changelog.{entity}", 3, 41, 1_700_000_000_000, KEY, value, {}), "shop", "i-1")


@pytest.mark.parametrize("entity", DERIVED)
def test_a_create_gives_a_version_under_the_entity_and_a_patch_under_the_guest(entity: str) -> None:
    sample = SAMPLES[entity]
    latest, patch = derive(read(entity, change(sample)))
    assert (latest.topic, latest.partition, latest.key) == (latest_topic(entity), 3, sample["ref"].encode())
    assert parse(latest.value or b"") == parse(encode(sample))
    assert (patch.topic, patch.partition, patch.key) == (patch_topic(entity), 3, KEY)
    assert parse(patch.value or b"") == {
        "ref": sample["ref"],
        "guestRef": "g-1",
        "patch": [{"op": "replace", "path": "", "value": parse(encode(sample))}],
        "provenance": {"apiVersion": "1", "serviceName": "shop", "identifier": "i-1"},
    }


def test_a_delete_gives_a_tombstone_and_a_patch_to_null() -> None:
    latest, patch = derive(read("order", change(None, SAMPLES["order"])))
    assert (latest.key, latest.value) == (b"o-1", None)
    assert parse(patch.value or b"")["patch"] == [{"op": "replace", "path": "", "value": None}]


def test_an_update_that_changes_nothing_is_a_version_and_no_patch() -> None:
    """A version, because it is the newest record that said so."""
    (latest,) = derive(read("order", change(SAMPLES["order"], SAMPLES["order"])))
    assert latest.topic == "latest.order"


def test_fields_that_no_schema_knows_and_every_digit_go_out_as_they_came_in() -> None:
    current = b'{"ref":"o-1","guestRef":"g-1","total":12.10,"loyalty":{"points":12345678901234567890,"tier":null}}'
    value = b'{"provenance":{"apiVersion":"1","serviceName":"shop","identifier":"i-1"},"current":' + current + b"}"
    latest, patch = derive(read("order", value))
    assert latest.value == current
    assert current in (patch.value or b"")


def test_every_derived_record_says_where_it_is_from() -> None:
    for derived in derive(read("order", change(SAMPLES["order"]))):
        headers = {name: str(value) for name, value in derived.source.headers()}
        assert headers == {
            "source-topic": "changelog.order", "source-partition": "3", "source-offset": "41",
            "service-name": "shop", "identifier": "i-1",
        }  # fmt: skip
        assert source_of(Entry(derived.topic, 3, 7, 0, derived.key, derived.value, headers)) == derived.source


def test_a_record_without_our_headers_has_no_source() -> None:
    with pytest.raises(ContractError, match=r"latest\.order/0, offset 0: not written by the service derive"):
        source_of(Entry("latest.order", 0, 0, 0, b"o-1", b"{}", {}))


def test_versions_are_compacted_and_patches_go_with_the_log() -> None:
    topics = derived_topics(Settings())
    assert topics.keys() == {*map(latest_topic, DERIVED), *map(patch_topic, DERIVED)}
    assert {topics[latest_topic(entity)]["cleanup.policy"] for entity in DERIVED} == {"compact"}
    assert not any("cleanup.policy" in topics[patch_topic(entity)] for entity in DERIVED)


def test_whatever_the_log_takes_the_derived_topics_take() -> None:
    """Refs may be as long as the record, and a patch says them twice more."""
    room = int(derived_topics(Settings())["patch.order"]["max.message.bytes"])
    size = MAX_RECORD_BYTES // 3
    made = {**SAMPLES["order"], "ref": "r" * size, "guestRef": "g" * size, "numbers": [1e-45] * (size // 8)}
    key, value = made["guestRef"].encode(), encode(envelope("s", "i", made))
    assert MAX_RECORD_BYTES < len(value) + len(key) < 2 * MAX_RECORD_BYTES
    for derived in derive(Change("order", Entry("changelog.order", 0, 0, 0, key, value, {}), "s", "i")):
        assert len(derived.value or b"") + len(derived.key) < room
