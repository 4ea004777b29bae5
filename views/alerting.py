"""Alerts: matches that somebody should hear of, each once. They differ in what they look for, not in what they say."""

import json
from dataclasses import dataclass

from views.algebra import Field, Key
from views.matching import Matches, Seen


def alert(seen: Seen, **detail: object) -> tuple[object, ...]:
    """The alert that a record gives rise to; ``detail`` is whatever tells more."""
    return seen.guest, seen.time, seen.partition, seen.offset, json.dumps(detail, default=str)


@dataclass(frozen=True, kw_only=True)
class Alert(Matches):
    """A pattern: its matches are made by :func:`alert`, and go to the topic ``alert.<name>`` as well."""

    match: tuple[Field, ...] = (
        Field("guest_ref", "string", "the guest"),
        Field("at", "bigint", "the broker's time of the record that completed the pattern, microseconds since 1970"),
        Field("source_partition", "int", "partition of that record"),
        Field("source_offset", "bigint", "its offset"),
        Field("detail", "string", "what more there is to say, JSON"),
    )
    keys: tuple[Key, ...] = (
        Key(Field("guest_ref", "string", "the guest"), "guest_ref"),
        Key(Field("at", "timestamp", "the broker's time of the record that gave rise to it"), "timestamp_micros(at)"),
        Key(Field("source_partition", "int", "partition of that record"), "source_partition"),
        Key(Field("source_offset", "bigint", "its offset"), "source_offset"),
        Key(Field("detail", "string", "what more there is to say, JSON"), "detail"),
    )
    measures: tuple[()] = ()
    alert: bool = True
