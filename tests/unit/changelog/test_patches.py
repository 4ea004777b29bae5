"""Patches say what changed, in the terms of RFC 6902, and nothing where nothing did."""

from decimal import Decimal
from typing import Any

import pytest

from changelog.exact import canonical, parse, text_of
from changelog.patches import LARGE_BYTES, applied, patch
from tests.unit.changelog.samples import SAMPLES

pytestmark = pytest.mark.unit

ORDER = SAMPLES["order"] | {"total": Decimal("5.10")}


def between(original: dict[str, Any] | None, current: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The patch of a record with these two."""
    return patch(original, current, text_of({"original": original, "current": current}))


def test_a_create_replaces_null_and_a_delete_replaces_by_null() -> None:
    assert between(None, ORDER) == [{"op": "replace", "path": "", "value": ORDER}]
    assert between(ORDER, None) == [{"op": "replace", "path": "", "value": None}]


def test_an_update_names_what_changed_and_keeps_every_digit() -> None:
    current = ORDER | {"status": "PAID", "total": Decimal("12.10")}
    assert sorted(map(text_of, between(ORDER, current))) == [
        b'{"op":"replace","path":"/status","value":"PAID"}',
        b'{"op":"replace","path":"/total","value":12.10}',
    ]


def test_an_item_is_told_by_its_place() -> None:
    item = ORDER["items"][0]
    current = ORDER | {"items": [{**item, "quantity": 3}, {**item, "sku": "b"}]}
    assert between(ORDER, current) == [
        {"op": "replace", "path": "/items/0/quantity", "value": 3},
        {"op": "add", "path": "/items/1", "value": {**item, "sku": "b"}},
    ]


@pytest.mark.parametrize("name", ["a/b", "m~n", "", "~1", "Größe \U0001f4cf"])
def test_names_of_fields_are_escaped(name: str) -> None:
    (operation,) = between({name: {"x": 1}}, {name: {"x": 2}})
    assert operation["path"] == f"/{name.replace('~', '~0').replace('/', '~1')}/x"
    assert applied({name: {"x": 1}}, [operation]) == {name: {"x": 2}}


@pytest.mark.parametrize(
    ("original", "current"),
    [
        (b'{"total":12.10}', b'{"total":12.1}'),
        (b'{"total":12}', b'{"total":12.00}'),
        (b'{"a":1,"b":{"c":[true]}}', b'{"b":{"c":[true]},"a":1}'),
        (b"{}", b"{}"),
    ],
)
def test_equal_documents_have_no_patch(original: bytes, current: bytes) -> None:
    assert patch(parse(original), parse(current), original + current) == []


def test_true_is_not_one() -> None:
    for original, current in ((b'{"a":true,"b":2}', b'{"a":1,"b":2}'), (b'{"a":[[0]]}', b'{"a":[[false]]}')):
        operations = patch(parse(original), parse(current), original + current)
        assert canonical(applied(parse(original), operations)) == canonical(parse(current))
        assert len(operations) == 1


def test_a_large_record_is_replaced_whole() -> None:
    original, current = {"a": "x" * LARGE_BYTES, "b": 1}, {"a": "x" * LARGE_BYTES, "b": 2}
    assert between(original, current) == [{"op": "replace", "path": "", "value": current}]
    assert between(original, dict(original)) == []


def test_a_patch_that_would_be_longer_than_the_record_is_not_made() -> None:
    name = "name" * 50
    original, current = ({name: {str(n): one for n in range(50)}} for one in (1, 2))
    assert between(original, current) == [{"op": "replace", "path": "", "value": current}]


def test_a_document_is_not_changed_by_its_patch() -> None:
    original = {"items": [{"a": 1}]}
    assert applied(original, [{"op": "add", "path": "/items/0/b", "value": 2}]) == {"items": [{"a": 1, "b": 2}]}
    assert original == {"items": [{"a": 1}]}
