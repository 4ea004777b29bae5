"""``load``: JSON lines ``{"entity": …, "envelope": {…}}``. A bad line is refused with its number, the others go in."""

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from changelog.envelope import guest_ref
from changelog.erased import NOBODY, Erased
from changelog.producer import Record
from changelog.sources.checked import IS_ERASED
from changelog.validation import check
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, topic_of

_TEXT = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds where a JSON value ends; what it makes of numbers is not used."""

Refuse = Callable[[str, int, str], None]
"""Called with file name, line number and reason for each line that does not go in."""


@contextmanager
def opened(name: str) -> Iterator[Iterable[bytes]]:
    """A file by name: ``-`` is standard input, ``.gz`` is unpacked. Raises TerminalError if it cannot be opened."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = gzip.open(name) if name.endswith(".gz") else Path(name).open("rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise TerminalError(f"{name} cannot be read: {error}") from error
    with file:
        yield file


def records(lines: Iterable[bytes], name: str, refuse: Refuse, erased: Erased = NOBODY) -> Iterator[Record]:
    """The records of valid lines, in order. Blank lines are passed over; every other line is yielded or refused, also
    where its guest is erased.

    Raises TerminalError, naming the line, where the file itself is damaged.
    """
    for number, line in numbered(lines, name):
        made = _record(line)
        if isinstance(made, Record) and erased.has(made.key):
            refuse(name, number, IS_ERASED)
        elif isinstance(made, Record):
            yield made
        else:
            refuse(name, number, made)


def numbered(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number, from 1 on.

    Raises TerminalError, naming the line, where the file itself is damaged.
    """
    rest, number = iter(lines), 0
    while True:
        try:
            line = next(rest, None)
        except (OSError, EOFError, zlib.error) as error:
            raise TerminalError(f"{name}: cannot be read after line {number}: {error}") from error
        if line is None:
            return
        number += 1
        if line.strip():
            yield number, line


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
    try:
        value = envelope_text(line)
    except RecursionError:
        return "nested too deeply"
    verdict = check(entity, key, value)
    return verdict.reason if verdict.reason is not None else Record(topic_of(entity), key, value)


def envelope_text(line: bytes) -> bytes:
    """The envelope as it stands in a line of JSON: a parsed number would lose digits of money."""
    text = line.decode()
    at, found = text.index("{") + 1, ""
    while True:
        name, at = _TEXT.raw_decode(text, _after_space(text, at))
        start = _after_space(text, _after_space(text, at) + 1)
        _, at = _TEXT.raw_decode(text, start)
        if name == "envelope":
            found = text[start:at]
        at = _after_space(text, at)
        if text[at] == "}":
            return found.encode()
        at += 1


def _after_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
