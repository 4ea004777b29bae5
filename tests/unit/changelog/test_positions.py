"""Vectors: an order, and a form in JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.positions import Vector, covers, from_json, highest, to_json

pytestmark = pytest.mark.unit

VECTORS = st.dictionaries(
    st.sampled_from(["changelog.order", "changelog.event"]),
    st.dictionaries(st.integers(0, 12), st.integers(0, 3), max_size=3),
    max_size=2,
)


@given(vector=VECTORS)
def test_a_vector_survives_json(vector: Vector) -> None:
    assert from_json(json.loads(json.dumps(to_json(vector)))) == vector


def test_json_is_the_form_of_spark_in_the_order_of_numbers() -> None:
    vector = {"changelog.order": {10: 1, 2: 7}, "changelog.event": {0: 12}}
    text = '{"changelog.event": {"0": 12}, "changelog.order": {"2": 7, "10": 1}}'
    assert json.dumps(to_json(vector)) == text


@given(a=VECTORS, b=VECTORS, c=VECTORS)
def test_covering_is_an_order(a: Vector, b: Vector, c: Vector) -> None:
    assert covers(a, a)
    if covers(a, b) and covers(b, c):
        assert covers(a, c)


@given(a=VECTORS, b=VECTORS)
def test_one_covers_another_where_no_partition_is_behind(a: Vector, b: Vector) -> None:
    behind = [(t, p) for t, offsets in b.items() for p, offset in offsets.items() if a.get(t, {}).get(p, 0) < offset]
    assert covers(a, b) == (not behind)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({}, {}, True),
        ({}, {"t": {0: 0}}, True),
        ({}, {"t": {0: 1}}, False),
        ({"t": {0: 5, 1: 5}}, {"t": {0: 5}}, True),
        ({"t": {0: 5}}, {"t": {0: 5, 1: 0}}, True),
        ({"t": {0: 9, 1: 4}}, {"t": {0: 5, 1: 5}}, False),
        ({"t": {0: 9}}, {"u": {0: 1}}, False),
    ],
)
def test_a_partition_that_is_missing_stands_at_zero(a: Vector, b: Vector, expected: bool) -> None:
    assert covers(a, b) is expected


def test_the_higher_of_two_positions_is_taken_where_both_have_one() -> None:
    mine = {"a": {0: 5, 1: 5}, "b": {0: 1}}
    assert highest(mine, {"a": {0: 7, 1: 3, 2: 9}, "c": {0: 1}}) == {"a": {0: 7, 1: 5}, "b": {0: 1}}
    assert highest(mine, {}) == mine
