"""Dead letters: bad records of the log, and the file in which they are taken out, mended and brought back. Pure.

A line of the file is one dead letter. Whoever mends it changes ``envelope``; the rest says which one it is.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

import orjson

from changelog import exact
from changelog.envelope import API_VERSION, Envelope, guest_ref, timestamp
from changelog.producer import Record
from changelog.records import Identity, Place
from changelog.sources.load import envelope_text
from changelog.validation import check
from runtime.settings import ENTITIES, entity_of, topic_of

SERVICE = "dead-letters"
"""Writes what its own bytes do not say who wrote."""

HEADER = "dead-letter"
"""Of a mended record: the place of the dead letter that it was."""


class DeadLetter(NamedTuple):
    """A bad record, whole. ``append_time`` is the broker's."""

    place: Place
    reason: str
    append_time: datetime
    key: bytes | None
    value: bytes


class Mended(NamedTuple):
    """A dead letter that is a change now: ``record`` is to be sent. ``ref`` is its entity's."""

    place: Place
    record: Record
    identity: Identity
    ref: str


class Refused(NamedTuple):
    """A line of which nothing can be sent. ``place`` is None where it does not say which dead letter it is."""

    place: Place | None
    reason: str


def line_of(letter: DeadLetter) -> bytes:
    """A line of JSON, without its end: topic, partition, offset, entity, reason, append_time, key and value, each with
    its encoding (utf-8 or base64), and ``envelope``: the value as JSON, or null where it is none."""
    key, key_encoding = _readable(letter.key)
    value, value_encoding = _readable(letter.value)
    return orjson.dumps(
        {
            **letter.place._asdict(),
            "entity": entity_of(letter.place.topic),
            "reason": letter.reason,
            "append_time": timestamp(letter.append_time),
            "key": key,
            "key_encoding": key_encoding,
            "value": value,
            "value_encoding": value_encoding,
            "envelope": _envelope(letter.value),
        }
    )


def mended(line: bytes) -> Mended | Refused:
    """What is to be sent of a line, or why nothing can be.

    ``envelope`` goes in as it stands, in the topic of ``entity``; where there is none, ``value`` does. One that says no
    service or identifier that is usable gets one made from the place of the dead letter: the same each time.
    """
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Refused(None, f"not JSON: {error}")
    place = _place(parsed)
    if place is None:
        unsaid = "it does not say which dead letter it is: topic, partition and offset as they were exported"
        return Refused(None, unsaid)
    made = _mended(line, parsed, place)
    return Refused(place, made) if isinstance(made, str) else made


def _mended(line: bytes, parsed: dict[str, Any], place: Place) -> Mended | str:
    entity = parsed.get("entity", entity_of(place.topic))
    if entity not in ENTITIES:
        return f"entity is {entity!r}; there are {', '.join(ENTITIES)}"
    try:
        value = _value(line, parsed)
        made = orjson.loads(value)
        if isinstance(made, dict) and (provenance := _completed(made, place)):
            value = exact.text_of({**exact.parse(value), "provenance": provenance})
    except orjson.JSONDecodeError as error:
        return f"still bad: there is no envelope, and the value is not JSON: {error}"
    except ValueError as error:
        return str(error)
    except (TypeError, RecursionError):
        return "still bad: nested too deeply"
    try:
        key = guest_ref(entity, made).encode()
    except (KeyError, TypeError, AttributeError) as error:
        return f"still bad: it names no guest: {error!r}"
    reason, service, identifier = check(entity, key, value)
    if reason is not None or service is None or identifier is None:
        return f"still bad: {reason}"
    topic = topic_of(entity)
    ref = (made.get("current") or made["original"])["ref"]
    return Mended(place, Record(topic, key, value), Identity(topic, key, service, identifier), ref)


def _place(parsed: Any) -> Place | None:
    """The place that a parsed line names; None if it names none of the changelog."""
    if not isinstance(parsed, dict):
        return None
    topic, partition, offset = parsed.get("topic"), parsed.get("partition"), parsed.get("offset")
    if topic not in [topic_of(entity) for entity in ENTITIES] or not (_is_number(partition) and _is_number(offset)):
        return None
    return Place(topic, partition, offset)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _readable(content: bytes | None) -> tuple[str | None, str | None]:
    """(text, encoding)."""
    if content is None:
        return None, None
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"


def _envelope(value: bytes) -> orjson.Fragment | None:
    """The value as JSON with its numbers as they stand; None where it is no JSON object, or none to edit by hand."""
    try:
        return orjson.Fragment(exact.text_of(exact.parse(value))) if isinstance(orjson.loads(value), dict) else None
    except (ValueError, TypeError, RecursionError):
        return None


def _value(line: bytes, parsed: Mapping[str, Any]) -> bytes:
    """The bytes that a line wants to be sent. Raises ValueError if there are none."""
    if isinstance(parsed.get("envelope"), dict):
        return envelope_text(line)
    if parsed.get("envelope") is not None:
        raise ValueError("envelope is not a JSON object")
    value, encoding = parsed.get("value"), parsed.get("value_encoding", "utf-8")
    if not isinstance(value, str) or encoding not in ("utf-8", "base64"):
        raise ValueError("there is neither envelope nor value: write the mended record into envelope")
    if encoding == "base64":
        return base64.b64decode(value, validate=True)
    return value.encode()


def _completed(made: Envelope, place: Place) -> dict[str, Any] | None:
    """The provenance of a record that does not say who wrote it as what; None where it says so."""
    provenance = made.get("provenance")
    said = provenance if isinstance(provenance, dict) else {}
    usable = {name: text for name, text in said.items() if isinstance(text, str) and text}
    if usable.keys() >= {"serviceName", "identifier"}:
        return None
    return {**said, "apiVersion": API_VERSION, "serviceName": SERVICE, "identifier": str(place), **usable}
