"""What the check of schemas lets through never makes an old valid record invalid."""

import copy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import Phase, event, find, given, settings
from hypothesis import strategies as st

from changelog.evolution import Difference, compare

pytestmark = pytest.mark.property

Schema = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "c", "ref"])
SCALARS = st.sampled_from([None, True, 0, 1, 1.5, 7, "", "A", "AB", "b", "2026-01-31T12:00:00.000Z"])
BOUNDS = st.integers(0, 3)
TYPES = st.sampled_from(
    ["string", "number", "null", "boolean", ["string", "null"], ["number", "null"], "array", "object"]
)
REFERENCES: st.SearchStrategy[Any] = st.sampled_from(
    ["#/$defs/d", "#/$defs/e", "#/$defs/amount", "#/$defs/timestamp"]
).map(lambda to: {"$ref": to})
STRINGS = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", ["string", "null"]])},
    optional={
        "minLength": BOUNDS,
        "maxLength": BOUNDS,
        "pattern": st.sampled_from(["^A", "B$", ""]),
        "format": st.just("date-time"),
    },
)
NUMBERS = st.fixed_dictionaries({"type": st.just("number")}, optional={"minimum": BOUNDS, "exclusiveMaximum": BOUNDS})
LEAVES: st.SearchStrategy[Any] = st.one_of(
    STRINGS,
    NUMBERS,
    TYPES.map(lambda type_: {"type": type_}),
    st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr).map(lambda values: {"enum": values}),
    SCALARS.map(lambda value: {"const": value}),
    REFERENCES,
    st.builds(dict),
    st.just(True),
)


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, min_size=1, max_size=3)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.just(False) | inner,
            "maxProperties": st.integers(2, 4),
        },
    )


def _inner(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _object(inner),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"maxItems": BOUNDS}),
        inner.map(lambda schema: {"if": {"type": "null"}, "else": schema}),
        st.tuples(inner, inner).map(lambda two: {"if": two[0], "then": two[1]}),
        inner.map(lambda schema: {"not": schema}),
        st.lists(inner, min_size=1, max_size=2).map(lambda schemas: {"anyOf": schemas}),
    )


PARTS = LEAVES | _inner(LEAVES)
DEFINITIONS = st.fixed_dictionaries({"d": PARTS, "e": LEAVES, "amount": LEAVES, "timestamp": LEAVES})
KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": TYPES, "enum": st.lists(SCALARS, min_size=1, max_size=4, unique_by=repr), "pattern": st.just("^A"),
    "minLength": BOUNDS, "maxLength": BOUNDS, "minimum": BOUNDS, "exclusiveMaximum": BOUNDS, "maxItems": BOUNDS,
    "required": st.lists(NAMES, max_size=2, unique=True), "additionalProperties": st.booleans(), "items": PARTS,
    "else": PARTS, "then": PARTS, "not": PARTS, "title": st.just("t"), "const": SCALARS,
    "properties": st.dictionaries(NAMES, PARTS, max_size=2), "uniqueItems": st.booleans(),
}  # fmt: skip


WIDER = {"enum", "required", "properties", "type", "maxLength", "maxItems", "minimum", "minLength"}


@st.composite
def changes(draw: st.DrawFn) -> tuple[Schema, Schema]:
    """A schema, and the same after some edits anywhere in it: of half of them wider ones alone."""
    flat = draw(st.booleans())
    old: Schema = {**draw(_object(LEAVES if flat else PARTS)), "$defs": draw(DEFINITIONS)}
    new = copy.deepcopy(old)
    only_wider = draw(st.booleans())
    for _ in range(1 if flat else draw(st.integers(1, 3))):
        nodes = _nodes(new) if draw(st.integers(0, 4)) == 4 else _nodes(new, leave="$defs")
        wider = [node for node in nodes if node.keys() & WIDER]
        if wider and only_wider:
            _widen(draw, draw(st.sampled_from(wider)))
        else:
            _edit(draw, draw(st.sampled_from(nodes)))
    return old, new


def _nodes(value: Any, leave: str | None = None) -> list[Schema]:
    """Every JSON object in a schema: schemas, and the objects that hold schemas by name."""
    if isinstance(value, list):
        return [node for child in value for node in _nodes(child)]
    if not isinstance(value, dict):
        return []
    return [value, *(node for name, child in value.items() if name != leave for node in _nodes(child))]


def _edit(draw: st.DrawFn, node: Schema) -> None:
    again = sorted(node.keys() & KEYWORDS.keys())
    match draw(st.sampled_from(["add", *(["replace", "drop"] if node else []), *(["again"] * 3 if again else [])])):
        case "add" | "again" as edit:
            keyword = draw(st.sampled_from(again if edit == "again" else sorted(KEYWORDS)))
            node[keyword] = draw(KEYWORDS[keyword])
        case "replace":
            node.clear()
            part = draw(LEAVES)
            node.update(part if isinstance(part, dict) else {})
        case "drop":
            del node[draw(st.sampled_from(sorted(node)))]


def _widen(draw: st.DrawFn, node: Schema) -> None:
    match draw(st.sampled_from(sorted(node.keys() & WIDER))):
        case "enum" if isinstance(node["enum"], list):
            node["enum"] = [*node["enum"], draw(st.sampled_from(["more", "still more"]))]
        case "properties" if isinstance(node["properties"], dict):
            node["properties"].setdefault(draw(st.sampled_from(["new", "a", "b", "c"])), draw(PARTS))
        case "type" if isinstance(node["type"], str) and node["type"] != "null":
            node["type"] = [node["type"], "null"]
        case "required" if isinstance(node["required"], list):
            node["required"] = node["required"][1:]
        case "maxLength" | "maxItems" as keyword:
            node[keyword] = 9
        case "minimum" | "minLength" as keyword:
            node[keyword] = 0


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, Schema, list[Any]]:
    """A changed schema, and values that old producers might have written."""
    old, new = draw(changes())
    return old, new, draw(st.lists(_values(old, old, 4), min_size=3, max_size=6))


def _values(schema: Any, document: Schema, depth: int) -> st.SearchStrategy[Any]:
    """Values that a schema may well accept. Unknown fields have names that no later schema takes."""
    junk: st.SearchStrategy[Any] = (
        SCALARS | st.dictionaries(st.sampled_from(["u", "v"]), SCALARS, max_size=2) | st.lists(SCALARS, max_size=2)
    )
    if not isinstance(schema, dict) or depth == 0:
        return junk
    likely = [junk]
    if isinstance(schema.get("enum"), list):
        likely.append(st.sampled_from(schema["enum"]))
    if "const" in schema:
        likely.append(st.just(schema["const"]))
    if "$ref" in schema:
        likely.append(_values(document["$defs"][schema["$ref"].rsplit("/", 1)[1]], document, depth - 1))
    for keyword in ("else", "then", "not", "if"):
        if keyword in schema:
            likely.append(_values(schema[keyword], document, depth - 1))
    likely += [_values(one, document, depth - 1) for one in schema.get("anyOf", ())]
    if "items" in schema:
        likely += [st.lists(_values(schema["items"], document, depth - 1), max_size=3)] * 2
    if "properties" in schema or "required" in schema:
        fields = dict.fromkeys(schema.get("required", ()), junk)
        fields |= {name: _values(one, document, depth - 1) for name, one in schema.get("properties", {}).items()}
        needed = {name: value for name, value in fields.items() if name in schema.get("required", ())}
        others = {name: value for name, value in fields.items() if name not in needed}
        likely += [st.fixed_dictionaries(needed, optional={**others, "u": SCALARS})] * 3
    return st.one_of(likely)


def validator(schema: Schema) -> jsonschema_rs.Draft202012Validator | None:
    """None where it is no schema at all."""
    try:
        return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None


def judged(case: tuple[Schema, Schema, list[Any]]) -> tuple[list[Difference], list[Any], list[Any]]:
    """(differences, values that were valid, those of them that no longer are)."""
    old, new, values = case
    before, after = validator(old), validator(new)
    if before is None or after is None:
        return [], [], []
    valid = [value for value in values if before.is_valid(value)]
    return compare(old, new), valid, [value for value in valid if not after.is_valid(value)]


@settings(max_examples=600)
@given(cases())
def test_what_is_let_through_never_makes_an_old_valid_record_invalid(case: tuple[Schema, Schema, list[Any]]) -> None:
    differences, valid, broken = judged(case)
    if any(difference.refused for difference in differences):
        event("refused")
        return
    event(f"let through, {'something' if differences else 'nothing'} changed, {'with' if valid else 'without'} values")
    assert broken == []


def test_control_the_cases_hold_what_the_check_has_to_find_and_what_it_has_to_let_through() -> None:
    limits = settings(max_examples=2000, phases=[Phase.generate])

    def breaks(case: tuple[Schema, Schema, list[Any]]) -> bool:
        return bool(judged(case)[2])

    def widens(case: tuple[Schema, Schema, list[Any]]) -> bool:
        differences, valid, _ = judged(case)
        wider = [difference for difference in differences if difference.remedy]
        return bool(valid and wider) and not any(difference.refused for difference in differences)

    find(cases(), breaks, settings=limits)
    find(cases(), widens, settings=limits)
