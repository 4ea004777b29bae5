"""Whether the schemas may change as they did: what was valid stays valid, and every column stays what it was.

The schemas that were released last are kept in ``changelog/schemas/released/``. What is not known to be compatible is
refused. ``anabranch schema check`` tells, ``anabranch schema release`` takes the schemas over.

A new optional property is compatible on one condition that no schema shows: no producer wrote a field of that name
before, for unknown fields may hold anything.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import jsonschema_rs

from changelog.typed import entity_type, snake, superset_type
from changelog.validation import check as judge
from runtime.errors import ContractError
from runtime.settings import ENTITIES
from runtime.version import ROOT

SCHEMAS = ROOT / "changelog" / "schemas"
RELEASED = SCHEMAS / "released"

ANNOTATIONS = {"title", "description", "$comment", "examples", "default", "deprecated", "readOnly", "writeOnly"}
"""Keywords that judge nothing."""

IDENTITY = {"ref", "guestRef", "provenance", "apiVersion", "serviceName", "identifier"}
"""Properties that keys, partitions and duplicates hang on: what they accept stays as it is."""

ENTITY = "#/$defs/entity"
"""The one reference that leads to another file: from the envelope to what is in it."""

TIMESTAMP, AMOUNT = "#/$defs/timestamp", "#/$defs/amount"
"""Definitions that have a column type of their own (``changelog/typed.py``)."""

LARGEST_AMOUNT = 99_999_999_999_999
"""Of decimal(18,4), a digit's rounding left free."""

LOWER_BOUNDS = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
UPPER_BOUNDS = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}

READERS_FIRST = (
    "deploy the readers (both layers) before any producer writes it: until then such a record is a dead letter"
)
ADD_ANOTHER = "keep it, and add a new optional property beside it"

_ABSENT: Any = object()
_PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


@dataclass(frozen=True, order=True)
class Difference:
    """One thing that changed. ``path`` is a JSON path in ``file``; ``refused`` changes are incompatible."""

    file: str
    path: str
    change: str
    remedy: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.file} {self.path}: {self.change}{'; ' if self.remedy else ''}{self.remedy}"


class _Node(NamedTuple):
    """A schema within its document. ``frozen``: the reason why not even a wider one will do, or empty. ``spoken``: what
    the schemas that judge the same value say of its members, see :func:`_spoken`."""

    schema: Any
    document: dict[str, Any]
    path: str
    spoken: frozenset[str]
    frozen: str = ""

    def beside(self, schema: Any, step: str) -> "_Node":
        """A schema that judges the same value."""
        return self._replace(schema={} if schema is _ABSENT else schema, path=self.path + step)

    def member(self, schema: Any, step: str, frozen: str = "") -> "_Node":
        """The schema of a part of the value."""
        spoken = _spoken(schema, self.document, frozenset())
        return _Node(schema, self.document, self.path + step, spoken, self.frozen or frozen)


def check(schemas: Path = SCHEMAS, released: Path = RELEASED) -> list[Difference]:
    """Every difference between the schemas and what was released, those that are refused first.

    Raises ContractError, naming the file, if one is no JSON Schema.
    """
    now, before = _read(schemas), _read(released)
    found = [Difference(name, "$", "a new schema", "", False) for name in now.keys() - before.keys()]
    gone = "was removed; what it describes is in the log"
    found += [Difference(name, "$", gone, "put it back", True) for name in before.keys() - now.keys()]
    for name in now.keys() & before.keys():
        found += (replace(difference, file=name) for difference in compare(before[name], now[name]))
    return sorted(found, key=lambda difference: (not difference.refused, difference))


def release(schemas: Path = SCHEMAS, released: Path = RELEASED) -> list[Difference]:
    """Make the schemas the released ones and return what changed. A second call changes nothing.

    Raises ContractError, and releases nothing, if a change is refused.
    """
    differences = check(schemas, released)
    refused = [difference for difference in differences if difference.refused]
    if refused:
        raise ContractError("nothing is released:\n" + "\n".join(f"  {difference}" for difference in refused))
    released.mkdir(parents=True, exist_ok=True)
    for path in schemas.glob("*.json"):
        (released / path.name).write_bytes(path.read_bytes())
    return differences


def unreleased(schemas: Path = SCHEMAS, released: Path = RELEASED) -> list[str]:
    """Names of the schemas that are not, byte for byte, what was released."""
    names = {path.name for directory in (schemas, released) for path in directory.glob("*.json")}
    return sorted(name for name in names if _bytes(schemas / name) != _bytes(released / name))


def compare(before: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """The differences between two schemas; ``file`` is left empty."""
    if _canonical(before) == _canonical(now):
        return []
    one, other = (_Node(schema, schema, "$", _spoken(schema, schema, frozenset())) for schema in (before, now))
    return sorted(set(_compare(one, other, frozenset())))


def check_readable() -> None:
    """Raise ContractError unless validation and typed columns can be made of the schemas as they are now."""
    for entity in ENTITIES:
        try:
            entity_type(entity)
            judge(entity, None, b"{}")
        except KeyError as error:
            raise ContractError(f"{entity}.json cannot be used: there is no definition {error}") from error
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise ContractError(f"{entity}.json cannot be used: {error}") from error
    try:
        superset_type()
    except ValueError as error:
        raise ContractError(f"the schemas cannot be used together: {error}") from error


def _read(directory: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(directory.glob("*.json")):
        try:
            found[path.name] = json.loads(path.read_text())
            jsonschema_rs.meta.validate(found[path.name])
        except (ValueError, jsonschema_rs.ValidationError) as error:
            raise ContractError(f"{path} is no JSON Schema: {error}") from error
    return found


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


_Seen = frozenset[tuple[str, bool]]
"""The definitions that led to where we are, each with whether it was frozen there: a circle is gone around once."""


def _compare(before: _Node, now: _Node, seen: _Seen) -> Iterator[Difference]:
    """What differs between two schemas that judge the same value."""
    if not isinstance(before.schema, dict) or not isinstance(now.schema, dict):
        if before.schema is not now.schema:
            yield _refused(now, "the whole schema changed", ADD_ANOTHER)
        return
    for keyword in sorted((before.schema.keys() | now.schema.keys()) - ANNOTATIONS - {"$defs"}):
        old, new = before.schema.get(keyword, _ABSENT), now.schema.get(keyword, _ABSENT)
        if keyword == "$ref":
            yield from _reference(before, now, old, new, seen)
        elif keyword == "properties":
            yield from _properties(before, now, {} if old is _ABSENT else old, {} if new is _ABSENT else new, seen)
        elif keyword == "items" and _ABSENT not in (old, new):
            yield from _compare(before.member(old, ".items"), now.member(new, ".items"), seen)
        elif keyword in ("then", "else") and _same(before, now, "if"):
            yield from _compare(before.beside(old, f".{keyword}"), now.beside(new, f".{keyword}"), seen)
        elif not _same(before, now, keyword):
            yield from _RULES.get(keyword, _unknown)(now, keyword, old, new)


def _reference(before: _Node, now: _Node, old: Any, new: Any, seen: _Seen) -> Iterator[Difference]:
    """A reference stays the same reference, for column types hang on it; what it refers to may change as any schema."""
    if old != new:
        yield _refused(now, f"$ref changed from {_text(old)} to {_text(new)}", ADD_ANOTHER)
        return
    was, is_now = _resolved(old, before.document), _resolved(new, now.document)
    frozen = now.frozen or ("a column type hangs on it" if old == TIMESTAMP else "")
    place = (old, bool(frozen))
    if place in seen or (was is is_now is _ABSENT and old == ENTITY):
        return
    if was is _ABSENT or is_now is _ABSENT:
        yield _refused(now, f"what {old} refers to is not known on both sides", "put it into $defs")
        return
    path = "$" + "".join(map(_step, old.removeprefix("#/").split("/")))
    one, other = (node._replace(schema=to, path=path, frozen=frozen) for node, to in ((before, was), (now, is_now)))
    yield from _compare(one, other, seen | {place})
    if old == AMOUNT and was != is_now and isinstance(is_now, dict):
        for keyword, sign in (("minimum", -1), ("maximum", 1)):
            bound: Any = is_now.get(keyword)
            if not _is_number(bound) or bound * sign > LARGEST_AMOUNT:
                yield _refused(
                    other, f"{keyword} is {_text(is_now.get(keyword, _ABSENT))}: decimal(18,4) cannot hold that",
                    f"stay within {sign * LARGEST_AMOUNT}",
                )  # fmt: skip


def _properties(
    before: _Node, now: _Node, old: dict[str, Any], new: dict[str, Any], seen: _Seen
) -> Iterator[Difference]:
    for name in sorted(old.keys() | new.keys()):
        step = f".properties{_step(name)}"
        if name not in new:
            yield _refused(now.member({}, step), "was removed; columns and views hang on it", "put it back")
        elif name in old:
            frozen = "keys, partitions and duplicates hang on it" if name in IDENTITY else ""
            yield from _compare(before.member(old[name], step, frozen), now.member(new[name], step, frozen), seen)
        else:
            others = [*old, *(other for other in new if other != name)]
            yield from _added(before, now.member(new[name], step), name, others)


def _added(before: _Node, now: _Node, name: str, others: list[str]) -> Iterator[Difference]:
    """A new property of ``before``. That it is not required is the business of ``required``."""
    if name in before.spoken:
        yield _refused(now, "is new here and was spoken of before, so records may have it", "give it another name")
    elif _ANY_NAME in before.spoken:
        yield _refused(now, "a new property, where any name had a schema already", "add no property here")
    elif taken := sorted(other for other in others if snake(other) == snake(name)):
        yield _refused(now, f"its column would be that of {taken[0]}", "give it another name")
    elif before.schema.get("additionalProperties", True) is False:
        yield Difference("", now.path, "a new optional property, where others were forbidden", READERS_FIRST, False)
    else:
        yield Difference("", now.path, "a new optional property", "", False)


_ANY_NAME = "*"
_BESIDE = ("$ref", "if", "then", "else", "not", "allOf", "anyOf", "oneOf")


def _spoken(schema: Any, document: dict[str, Any], seen: frozenset[str]) -> frozenset[str]:
    """Names of the members of a value that a schema speaks of, also in what it is combined with; ``*`` where it has a
    schema for members of any name."""
    if not isinstance(schema, dict):
        return frozenset()
    names = set(schema.get("properties", ())) | set(schema.get("required", ()))
    for keyword in ("dependentRequired", "dependentSchemas"):
        names |= set(schema.get(keyword, ()))
    open_to_any = {"patternProperties", "unevaluatedProperties", "propertyNames", "$dynamicRef"} & schema.keys()
    if open_to_any or not isinstance(schema.get("additionalProperties", True), bool):
        names.add(_ANY_NAME)
    for keyword in _BESIDE:
        child = schema.get(keyword)
        if keyword == "$ref" and isinstance(child, str) and child not in seen:
            target = _resolved(child, document)
            names |= {_ANY_NAME} if target is _ABSENT else _spoken(target, document, seen | {child})
        elif keyword != "$ref":
            for one in child if isinstance(child, list) else [child]:
                names |= _spoken(one, document, seen)
    for one in schema.get("dependentSchemas", {}).values():
        names |= _spoken(one, document, seen)
    return frozenset(names)


def _type(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    one, other = (
        set() if type_ is _ABSENT else {type_} if isinstance(type_, str) else set(type_) for type_ in (old, new)
    )
    if one and other == one | {"null"}:
        yield _allowed(now, f"may be null now, it was {_text(old)}", READERS_FIRST)
    else:
        yield _refused(now, f"type changed from {_text(old)} to {_text(new)}", ADD_ANOTHER)


def _enum(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    if _ABSENT in (old, new):
        yield from _unknown(now, keyword, old, new)
        return
    one, other = ({_canonical(value) for value in values} for values in (old, new))
    if one - other:
        yield _refused(now, f"enum lost {', '.join(sorted(one - other))}", "put it back; records have it")
    elif other - one:
        yield _allowed(now, f"enum has {', '.join(sorted(other - one))} as well", READERS_FIRST)


def _required(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    one, other = (set(() if names is _ABSENT else names) for names in (old, new))
    for name in sorted(other - one):
        yield _refused(now, f"{name} is required now; records lack it", "leave it optional")
    for name in sorted(one - other):
        at = now._replace(
            frozen=now.frozen or ("keys, partitions and duplicates hang on it" if name in IDENTITY else "")
        )
        yield _allowed(at, f"{name} is no longer required", READERS_FIRST)


def _lower(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    yield from _bound(now, keyword, old, new, tighter=lambda old, new: new > old)


def _upper(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    yield from _bound(now, keyword, old, new, tighter=lambda old, new: new < old)


def _bound(now: _Node, keyword: str, old: Any, new: Any, tighter: Callable[[Any, Any], bool]) -> Iterator[Difference]:
    change = f"{keyword} changed from {_text(old)} to {_text(new)}"
    if new is not _ABSENT and (old is _ABSENT or tighter(old, new)):
        yield _refused(now, f"{change}: tighter; records may lie beyond it", "put it back")
    elif old is _ABSENT or new is _ABSENT or old != new:
        yield _allowed(now, f"{change}: looser", READERS_FIRST)


def _droppable(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    """``pattern``, ``format``: none is wider than any; whether one is wider than another is not decided here."""
    if new is _ABSENT:
        yield _allowed(now, f"{keyword} {_text(old)} was dropped", READERS_FIRST)
    else:
        yield _refused(now, f"{keyword} changed from {_text(old)} to {_text(new)}", "put it back")


def _unknown(now: _Node, keyword: str, old: Any, new: Any) -> Iterator[Difference]:
    change = f"{keyword} changed from {_text(old)} to {_text(new)}"
    yield _refused(now, f"{change}; it is not known that this is compatible", ADD_ANOTHER)


_RULES: dict[str, Callable[[_Node, str, Any, Any], Iterator[Difference]]] = {
    "type": _type,
    "enum": _enum,
    "required": _required,
    "pattern": _droppable,
    "format": _droppable,
    **dict.fromkeys(LOWER_BOUNDS, _lower),
    **dict.fromkeys(UPPER_BOUNDS, _upper),
}


def _refused(now: _Node, change: str, remedy: str) -> Difference:
    return Difference("", now.path, change, remedy, True)


def _allowed(now: _Node, change: str, remedy: str) -> Difference:
    if now.frozen:
        return _refused(now, f"{change}, but {now.frozen}", "put it back")
    return Difference("", now.path, change, remedy, False)


def _same(before: _Node, now: _Node, keyword: str) -> bool:
    """Whether a keyword says the same on both sides, references followed. Absent on both sides is the same."""
    sides = []
    for node in (before, now):
        value = node.schema.get(keyword, _ABSENT)
        sides.append("" if value is _ABSENT else _canonical(_expanded(value, node.document, frozenset())))
    return sides[0] == sides[1]


def _expanded(value: Any, document: dict[str, Any], seen: frozenset[str]) -> Any:
    """A value in which references have what they refer to beside them; a circle ends with its name."""
    if isinstance(value, list):
        return [_expanded(item, document, seen) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: _expanded(child, document, seen) for name, child in value.items()}
    target = value.get("$ref")
    if isinstance(target, str) and target not in seen:
        found = _resolved(target, document)
        if found is not _ABSENT:
            made["$ref"] = [target, _expanded(found, document, seen | {target})]
        elif target != ENTITY:
            made["$ref"] = [target, document]  # it may lead anywhere in it
    return made


def _resolved(reference: Any, document: dict[str, Any]) -> Any:
    """What a reference within a document refers to. Other kinds of reference (anchors, other files) lead nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return _ABSENT
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or name not in node:
            return _ABSENT
        node = node[name]
    return node


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _canonical(value: Any) -> str:
    """JSON text that is equal where values are; ``true`` is not ``1``."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _text(value: Any) -> str:
    return "nothing" if value is _ABSENT else _canonical(value)


def _step(name: str) -> str:
    return f".{name}" if _PLAIN.fullmatch(name) else f"[{name!r}]"
