"""What of a schema may change once it is released: wider at most, and no column another one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from changelog.evolution import Difference, check, check_readable, compare, release, unreleased
from changelog.validation import schema
from runtime.errors import ContractError
from runtime.settings import ENTITIES

pytestmark = pytest.mark.unit

Schema = dict[str, Any]

BASE: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "thing",
    "type": "object",
    "required": ["ref", "status", "loose"],
    "properties": {
        "ref": {"type": "string", "minLength": 1},
        "status": {"enum": ["NEW", "OLD"]},
        "code": {"type": "string", "pattern": "^[A-Z]$", "format": "uri", "minLength": 1, "maxLength": 9},
        "note": {"type": ["string", "null"]},
        "total": {"$ref": "#/$defs/amount"},
        "at": {"$ref": "#/$defs/timestamp"},
        "maybe": {"if": {"type": "null"}, "else": {"$ref": "#/$defs/size"}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "closed": {"type": "object", "properties": {}, "additionalProperties": False},
        "open": {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        "never": {"not": {"$ref": "#/$defs/size"}},
    },
    "$defs": {
        "timestamp": {"type": "string", "format": "date-time"},
        "amount": {"type": "number", "minimum": -9999999999999, "maximum": 9999999999999},
        "size": {"type": "number", "minimum": 1, "maximum": 10},
    },
}

GONE = object()


def changed(*edits: tuple[str, Any]) -> Schema:
    """``BASE`` with values put at (or taken from) paths like ``properties/status/enum``."""
    made: Schema = json.loads(json.dumps(BASE))
    for path, value in edits:
        *parents, last = path.split("/")
        node = made
        for name in parents:
            node = node[name]
        if value is GONE:
            del node[last]
        else:
            node[last] = value
    return made


def found(*edits: tuple[str, Any]) -> tuple[list[Difference], list[Difference]]:
    """(refused, allowed) of ``BASE`` with edits."""
    differences = compare(BASE, changed(*edits))
    assert differences, "a change that nobody sees"
    return [one for one in differences if one.refused], [one for one in differences if not one.refused]


P = "properties/"


@pytest.mark.parametrize(
    ("path", "value", "at"),
    [
        ("description", "what it is", None),
        (P + "status/title", "state", None),
        (P + "status/enum", ["OLD", "NEW"], None),
        (P + "added", {"type": "string"}, "$.properties.added"),
        (P + "odd name", {"type": "string"}, "$.properties['odd name']"),
        (P + "lines/items/properties/name", {"type": "string"}, "$.properties.lines.items.properties.name"),
        (P + "closed/properties/x", {"type": "string"}, "$.properties.closed.properties.x"),
        (P + "status/enum", ["NEW", "OLD", "GONE"], "$.properties.status"),
        (P + "code/type", ["string", "null"], "$.properties.code"),
        (P + "code/pattern", GONE, "$.properties.code"),
        (P + "code/format", GONE, "$.properties.code"),
        (P + "code/minLength", 0, "$.properties.code"),
        (P + "code/maxLength", GONE, "$.properties.code"),
        ("$defs/amount/maximum", 99999999999999, "$.$defs.amount"),
        ("required", ["ref", "loose"], "$"),
    ],
)
def test_what_lets_every_old_record_through_is_allowed(path: str, value: Any, at: str | None) -> None:
    differences = compare(BASE, changed((path, value)))
    assert [one for one in differences if one.refused] == []
    assert [one.path for one in differences] == ([at] if at else [])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (P + "note", GONE, "was removed"),
        (P + "status", GONE, "was removed"),
        (P + "lines/items/properties/sku", GONE, "was removed"),
        ("required", ["ref", "status", "loose", "note"], "note is required now"),
        (P + "lines/items/required", ["sku"], "sku is required now"),
        (P + "note/type", "string", "type changed"),
        (P + "note/type", "integer", "type changed"),
        (P + "note/type", ["string", "null", "number"], "type changed"),
        (P + "code/type", GONE, "type changed"),
        (P + "status/type", "string", "type changed"),
        (P + "status/enum", ["NEW"], 'enum lost "OLD"'),
        (P + "status/enum", ["NEW", "OLDER"], 'enum lost "OLD"'),
        (P + "status/enum", GONE, "not known"),
        (P + "note/enum", ["a"], "not known"),
        (P + "note/const", "a", "not known"),
        (P + "code/pattern", "^[A-Z]+$", "pattern changed"),
        (P + "note/pattern", "^a", "pattern changed"),
        (P + "code/format", "uuid", "format changed"),
        (P + "code/minLength", 2, "tighter"),
        (P + "code/maxLength", 8, "tighter"),
        (P + "note/maxLength", 8, "tighter"),
        (P + "lines/maxItems", 8, "tighter"),
        (P + "lines/uniqueItems", True, "not known"),
        (P + "lines/items", GONE, "not known"),
        (P + "note/items", {"type": "string"}, "not known"),
        ("additionalProperties", False, "not known"),
        (P + "closed/additionalProperties", GONE, "not known"),
        (P + "open/properties/x", {"type": "integer"}, "had a schema already"),
        (P + "loose", {"type": "string"}, "spoken of before"),
        (P + "Note", {"type": "string"}, "its column would be"),
        (P + "ref/minLength", GONE, "hang on it"),
        (P + "ref/type", ["string", "null"], "hang on it"),
        ("required", ["status", "loose"], "hang on it"),
        (P + "at", {"type": "string", "format": "date-time"}, "$ref changed"),
        (P + "total/$ref", "#/$defs/size", "$ref changed"),
        (P + "note", {"$ref": "#/$defs/note"}, "$ref changed"),
        ("$defs/amount", GONE, "not known on both sides"),
        ("$defs/amount/maximum", GONE, "cannot hold"),
        ("$defs/amount/minimum", -(10**14), "cannot hold"),
        ("$defs/amount/maximum", 5, "tighter"),
        ("$defs/timestamp/format", GONE, "a column type hangs on it"),
        ("$defs/size/minimum", 2, "tighter"),
        ("$defs/size/minimum", 0, "not changed from"),
        (P + "maybe/if", {"type": "string"}, "if changed"),
        (P + "maybe/else", GONE, "$ref changed"),
        (P + "maybe/then", {"type": "string"}, "type changed"),
        (P + "note", False, "the whole schema changed"),
        ("$id", "https://example.com/thing", "not known"),
        ("somethingNew", 1, "not known"),
    ],
)
def test_what_is_not_known_to_be_compatible_is_refused(path: str, value: Any, said: str) -> None:
    refused, _ = found((path, value))
    assert any(said in one.change for one in refused), refused
    assert all(one.path.startswith("$") and one.remedy for one in refused)


def test_a_wider_definition_is_refused_where_something_else_is_narrower_for_it() -> None:
    """``size`` is wider: good for ``maybe``, which refers to it, wrong for ``never``, which refers to its contrary."""
    refused, allowed = found(("$defs/size/minimum", 0))
    assert {one.path for one in refused} == {"$.properties.never"}
    assert {one.path for one in allowed} == {"$.$defs.size"}


def test_true_is_not_one_and_a_property_named_like_a_keyword_is_a_property() -> None:
    one: Schema = {"properties": {"title": {"enum": [True]}, "enum": {"type": "string"}}}
    other: Schema = {"properties": {"title": {"enum": [1]}, "enum": {"type": "string"}}}
    assert [difference.path for difference in compare(one, other)] == ["$.properties.title"]
    del other["properties"]["title"]
    assert [difference.change for difference in compare(one, other)] == ["was removed; columns and views hang on it"]


def test_schemas_that_go_in_circles_are_compared() -> None:
    tree: Schema = {"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}}}
    tree["$defs"]["tree"]["not"] = {"properties": {"x": {"$ref": "#/$defs/tree"}}}
    other = json.loads(json.dumps(tree))
    other["$defs"]["tree"]["properties"]["right"] = {"$ref": "#/$defs/tree"}
    assert any(difference.refused for difference in compare(tree, other)), "the contrary of it is narrower"
    for schema_ in (tree, other):
        del schema_["$defs"]["tree"]["not"]
    assert [(one.path, one.refused) for one in compare(tree, other)] == [("$.$defs.tree.properties.right", False)]


@pytest.mark.parametrize("reference", ["#", "#anchor", "other.json", "#/$defs/100%25"])
def test_a_reference_that_leads_elsewhere_is_refused_once_anything_changes(reference: str) -> None:
    one: Schema = {"properties": {"x": {"$ref": reference}, "y": {"not": {"$ref": reference}}}}
    assert compare(one, json.loads(json.dumps(one))) == []
    other = {**one, "$defs": {"elsewhere": {"$anchor": "anchor"}}}
    assert [difference.path for difference in compare(one, other)] == ["$.properties.x", "$.properties.y"]


# the files


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the schemas and of what is released, the same at first."""
    schemas, released = tmp_path / "schemas", tmp_path / "schemas" / "released"
    shutil.copytree(Path("changelog/schemas").absolute(), schemas)
    return schemas, released


def edit(path: Path, change: Callable[[Schema], object]) -> None:
    made = json.loads(path.read_text())
    change(made)
    path.write_text(json.dumps(made, indent=2))


def test_the_schemas_are_released_and_can_be_used() -> None:
    assert unreleased() == [], "take them over: anabranch schema release"
    assert check() == []
    check_readable()


def test_a_release_takes_over_what_is_compatible_and_nothing_else(directories: tuple[Path, Path]) -> None:
    schemas, released = directories
    edit(schemas / "order.json", lambda order: order["properties"].update(giftNote={"type": "string"}))
    assert unreleased(schemas, released) == ["order.json"]
    (added,) = release(schemas, released)
    assert str(added) == "order.json $.properties.giftNote: a new optional property"
    assert unreleased(schemas, released) == []
    assert release(schemas, released) == []

    edit(schemas / "guest.json", lambda guest: guest["properties"].update(age={"type": "string"}))
    edit(schemas / "order.json", lambda order: order["properties"]["giftNote"].update(type="integer"))
    with pytest.raises(
        ContractError, match=r"order\.json \$\.properties\.giftNote: type changed from .*; keep it, and"
    ):
        release(schemas, released)
    assert unreleased(schemas, released) == ["guest.json", "order.json"], "nothing is released"


def test_a_schema_that_was_removed_is_refused_and_a_new_one_is_not(directories: tuple[Path, Path]) -> None:
    schemas, released = directories
    (schemas / "event.json").rename(schemas / "happening.json")
    assert [(one.file, one.refused) for one in check(schemas, released)] == [
        ("event.json", True),
        ("happening.json", False),
    ]


@pytest.mark.parametrize("text", ["{", '{"type": "text"}', '{"minimum": "low"}', '{"required": "ref"}'])
def test_what_is_no_json_schema_is_named(directories: tuple[Path, Path], text: str) -> None:
    schemas, released = directories
    (schemas / "order.json").write_text(text)
    with pytest.raises(ContractError, match=r"order\.json is no JSON Schema"):
        check(schemas, released)


def test_what_the_envelope_needs_of_itself_stays(directories: tuple[Path, Path]) -> None:
    schemas, released = directories

    def loosen(envelope: Schema) -> None:
        envelope["required"] = []
        envelope["properties"]["provenance"]["required"].remove("identifier")
        envelope["properties"]["provenance"]["properties"]["traceId"] = {"type": "string"}

    edit(schemas / "envelope.json", loosen)
    assert [(one.path, one.refused) for one in check(schemas, released)] == [
        ("$", True),
        ("$.properties.provenance", True),
        ("$.properties.provenance.properties.traceId", False),
    ]


@pytest.mark.parametrize("entity", ENTITIES)
def test_the_whole_schema_of_an_entity_compares_as_its_files_do(entity: str) -> None:
    whole = schema(entity)
    other = json.loads(json.dumps(whole))
    assert compare(whole, other) == []
    other["$defs"]["entity"]["required"].append("somethingElse")
    assert [(one.path, one.refused) for one in compare(whole, other)] == [("$.$defs.entity", True)]
