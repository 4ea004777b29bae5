"""What a record must be to count as a change. The single answer for every way in and for both layers.

The contract is the JSON Schema of each entity (``changelog/schemas/<entity>.json``) inside ``envelope.json``, and the
few rules between fields that a schema cannot say, each a line in :func:`_broken_rule`.
"""

import json
import re
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import jsonschema_rs
import orjson

MAX_DEPTH = 100
"""Deeper nesting is refused: readers in other languages have limits of their own (Jackson's is 1,000)."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_LONG_NUMBER = re.compile(rb"[0-9]{400}")


class Verdict(NamedTuple):
    """``reason`` is None for a valid change; ``service`` and ``identifier`` are its provenance."""

    reason: str | None
    service: str | None
    identifier: str | None


def schema(entity: str) -> dict[str, Any]:
    """The JSON Schema of a whole record of ``entity``: the envelope with the entity's schema in its place.

    Raises FileNotFoundError for an entity that does not exist.
    """
    files = resources.files("changelog") / "schemas"
    envelope: dict[str, Any] = json.loads((files / "envelope.json").read_text())
    entity_schema: dict[str, Any] = json.loads((files / f"{entity}.json").read_text())
    definitions = entity_schema.pop("$defs", {})
    entity_schema.pop("$schema", None)
    envelope["title"] = f"change of {entity}"
    envelope["$defs"] = {"entity": entity_schema, **definitions}
    return envelope


@cache
def _validator(entity: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema(entity), validate_formats=True)


def check(entity: str, key: bytes | None, value: bytes) -> Verdict:
    """Judge one record that has a value.

    Takes the entity of its topic, its Kafka key and its value, both as bytes. Never raises for bad input: the reason
    says what is wrong and, where the schema knows it, at which path. Pure: the same bytes give the same verdict.
    """
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return Verdict(f"not JSON: {error}", None, None)
    validator = _validator(entity)
    if not validator.is_valid(record):
        return Verdict(_first_error(validator, record), None, None)
    reason = _broken_rule(entity, key, record) or _beyond_limits(value, record)
    if reason is not None:
        return Verdict(reason, None, None)
    provenance = record["provenance"]
    return Verdict(None, provenance["serviceName"], provenance["identifier"])


def _first_error(validator: jsonschema_rs.Draft202012Validator, record: Any) -> str:
    try:
        error = next(iter(validator.iter_errors(record)))
    except ValueError as unsaid:  # it does not go as deep as the parser
        return f"schema: what is wrong cannot be told: {unsaid}"
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    message = error.message if len(error.message) <= 300 else error.message[:300] + "…"
    return f"schema: {message} (at ${path})"


def _broken_rule(entity: str, key: bytes | None, record: dict[str, Any]) -> str | None:
    current, original = record.get("current"), record.get("original")
    if current is None and original is None:
        return "neither current nor original"
    if entity == "event" and (original is not None or current is None):
        return "an event is immutable: it has a current and no original"
    guest = "ref" if entity == "guest" else "guestRef"
    newest: dict[str, Any] = current or original or {}
    if current is not None and original is not None:
        if current["ref"] != original["ref"]:
            return f"original.ref {original['ref']!r} is not current.ref {current['ref']!r}"
        if current[guest] != original[guest]:
            return "a change of guest is a delete under the old key and a create under the new one"
    if (key or b"") != newest[guest].encode():
        return f"key {(key or b'')!r} is not the guest's ref {newest[guest]!r}"
    return None


def _beyond_limits(value: bytes, record: Any) -> str | None:
    if value.count(b"{") + value.count(b"[") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    if len(value) > 400 and _LONG_NUMBER.search(value) and _LONG_NUMBER.search(_STRING.sub(b"", value)):
        return "a number of 400 digits or more"
    return None


def _depth(record: Any) -> int:
    depth, level = 0, [record]
    while level:
        depth += 1
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return depth
