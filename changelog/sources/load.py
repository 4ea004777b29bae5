"""``load``: JSON lines ``{"entity": …, "envelope": {…}}``. A bad line is refused with its number, the others go in."""

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import orjson

from changelog.envelope import encode, guest_ref
from changelog.producer import Record
from changelog.validation import check
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, topic_of

Refuse = Callable[[str, int, str], None]
"""Called with file name, line number and reason for each line that does not go in."""


@contextmanager
def opened(name: str) -> Iterator[Iterable[bytes]]:
    """A file by name: ``-`` is standard input, ``.gz`` is unpacked. Raises TerminalError if it cannot be read."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(name) if name.endswith(".gz") else Path(name).open("rb") as file:
            yield file
    except OSError as error:
        raise TerminalError(f"{name} cannot be read: {error}") from error


def records(lines: Iterable[bytes], name: str, refuse: Refuse) -> Iterator[Record]:
    """The records of valid lines, in order. Blank lines are passed over; every other line is yielded or refused."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        made = _record(line)
        if isinstance(made, Record):
            yield made
        else:
            refuse(name, number, made)


def _record(line: bytes) -> Record | str:
    """The record of one line, or why there is none. The envelope's bytes go in as they stand in the line."""
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"
    if not isinstance(parsed, dict) or not isinstance(parsed.get("envelope"), dict):
        return 'not an object {"entity": …, "envelope": {…}}'
    entity = parsed.get("entity")
    if entity not in ENTITIES:
        return f"entity is {entity!r}; there are {', '.join(ENTITIES)}"
    try:
        key = guest_ref(entity, parsed["envelope"]).encode()
    except (KeyError, TypeError, AttributeError) as error:
        return f"the envelope names no guest: {error!r}"
    value = _envelope_text(line)
    verdict = check(entity, key, value)
    return verdict.reason if verdict.reason is not None else Record(topic_of(entity), key, value)


def _envelope_text(line: bytes) -> bytes:
    """The envelope re-encoded with its numbers exactly as written (a float would lose digits of money)."""
    envelope: dict[str, object] = json.loads(line, parse_float=Decimal)["envelope"]
    return encode(envelope)
