"""What is derived from a change: the newest version of its entity (``latest.<entity>``) and what changed
(``patch.<entity>``). Names, headers and values; ``changelog.derive`` writes them. Pure."""

from typing import NamedTuple

from changelog.changes import Change
from changelog.exact import parse, text_of
from changelog.patches import patch
from changelog.reader import Entry
from changelog.topics import MAX_RECORD_BYTES
from runtime.errors import ContractError
from runtime.settings import ENTITIES, Settings, topic_of

DERIVED = tuple(entity for entity in ENTITIES if entity != "event")
"""Entities that have versions. An event is immutable: its topic is its newest version."""

HOUR_MS = 3_600_000

MAX_DERIVED_BYTES = 3 * MAX_RECORD_BYTES
"""A derived record says its refs once more than the record that it is from."""

GROUP = "anabranch-derive"
"""Consumer group whose committed offsets say how far the derived topics are."""


def latest_topic(entity: str) -> str:
    """``latest.<entity>``: compacted, key = the entity's ref, value = the entity, or none once it is deleted."""
    return f"latest.{entity}"


def patch_topic(entity: str) -> str:
    """``patch.<entity>``: key = the guest's ref, value = what changed (RFC 6902)."""
    return f"patch.{entity}"


BOUNDED = {"max.compaction.lag.ms": str(24 * HOUR_MS)}
"""Of compacted topics: so that what is deleted goes, however little is written."""


def derived_topics(settings: Settings) -> dict[str, dict[str, str]]:
    """Every derived topic, and what its configuration has that the changelog's has not."""
    common = {"max.message.bytes": str(MAX_DERIVED_BYTES)}
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": str(HOUR_MS),  # the newest segment is never compacted
        "delete.retention.ms": str(24 * HOUR_MS),
        **BOUNDED,
    }
    return {
        **{latest_topic(entity): {**common, **compacted} for entity in DERIVED},
        **{patch_topic(entity): common for entity in DERIVED},
    }


class Source(NamedTuple):
    """The record of the changelog that something was derived from: the headers of every derived record."""

    topic: str
    partition: int
    offset: int
    service: str
    identifier: str

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        """As Kafka takes them."""
        return [(name, str(value)) for name, value in zip(_HEADERS, self, strict=True)]


_HEADERS = ("source-topic", "source-partition", "source-offset", "service-name", "identifier")


def source_of(entry: Entry) -> Source:
    """Where a derived record comes from. Raises ContractError where its headers do not say so."""
    try:
        topic, partition, offset, service, identifier = (entry.headers[name] for name in _HEADERS)
        return Source(topic, int(partition), int(offset), service, identifier)
    except (KeyError, ValueError) as error:
        raise ContractError(
            f"{entry.topic}/{entry.partition}, offset {entry.offset}: not written by the service derive, which is the "
            f"only one to write there ({error!r})"
        ) from error


class Derived(NamedTuple):
    """A record for a derived topic; ``partition`` is its source's. A None value is a tombstone."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    source: Source


def burial(entity: str, partition: int, ref: str, position: int, erasure: int) -> Derived:
    """What takes the newest version of an erased guest's entity away. Its source is the end of what was derived by
    then, ``position``: behind everything before it, and not behind anything after it."""
    source = Source(topic_of(entity), partition, max(position - 1, 0), "erasure", str(erasure))
    return Derived(latest_topic(entity), partition, ref.encode(), None, source)


def derive(change: Change) -> list[Derived]:
    """What goes out for a change: the newest version, and, unless original and current are equal, the patch."""
    entity, entry, service, identifier = change
    text = entry.value or b""
    envelope = parse(text)
    current, original = envelope.get("current"), envelope.get("original")
    ref, guest = (current or original)["ref"], entry.key or b""
    source = Source(entry.topic, entry.partition, entry.offset, service, identifier)
    value = None if current is None else text_of(current)
    made = [Derived(latest_topic(entity), entry.partition, ref.encode(), value, source)]
    if operations := patch(original, current, text):
        said = {"ref": ref, "guestRef": guest.decode(), "patch": operations, "provenance": envelope["provenance"]}
        made.append(Derived(patch_topic(entity), entry.partition, guest, text_of(said), source))
    return made
