"""Envelopes: one change of one entity, as it goes into the log."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

API_VERSION = "1"

Entity = dict[str, Any]
Envelope = dict[str, Any]


def envelope(service: str, identifier: str, current: Entity | None = None, original: Entity | None = None) -> Envelope:
    """An envelope: a create has no ``original``, a delete no ``current``, an update both.

    ``identifier`` is the same when the same change is sent again, and never otherwise: duplicates are known by it.
    """
    made: Envelope = {
        "provenance": {"apiVersion": API_VERSION, "serviceName": service, "identifier": identifier},
    }
    if current is not None:
        made["current"] = current
    if original is not None:
        made["original"] = original
    return made


def guest_ref(entity: str, made: Envelope) -> str:
    """The guest whom a change is about: the Kafka key. Raises KeyError or TypeError where the envelope names none."""
    of = made.get("current") or made["original"]
    ref = of["ref"] if entity == "guest" else of["guestRef"]
    if not isinstance(ref, str):
        raise TypeError(f"the guest's ref is {ref!r}, not a text")
    return ref


def timestamp(time: datetime) -> str:
    """ISO 8601, UTC, milliseconds."""
    text = time.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def encode(made: Envelope) -> bytes:
    """JSON as UTF-8 bytes. Decimals become JSON numbers with every digit that they have."""
    return orjson.dumps(made, default=_number)


def _number(value: object) -> object:
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(f"{value:f}" if abs(value.adjusted()) < 50 else str(value))
    if isinstance(value, Decimal):
        raise TypeError(f"{value} is no JSON number")
    raise TypeError(f"{type(value).__name__} has no place in an envelope")
