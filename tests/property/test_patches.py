"""The law of the derived topics: patches, applied from the beginning, give what the newest versions say."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.changes import Change
from changelog.derived import Derived, derive
from changelog.envelope import encode, envelope
from changelog.exact import canonical, parse, text_of
from changelog.patches import applied
from changelog.reader import Entry

pytestmark = pytest.mark.property

Entity = dict[str, Any]

NAMES = st.sampled_from(["a", "b", "status", "", "~", "/", "a/b", "m~n", "0", "-", "é", "\U0001f34e"])
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(10**25), 10**25).map(lambda number: parse(str(number).encode())),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-99, max_value=99),
    st.sampled_from([Decimal("12.10"), Decimal("12.1"), Decimal("1E+30"), Decimal("-0.0"), Decimal("1.0")]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=4))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
ITEMS = st.lists(
    st.fixed_dictionaries({"sku": st.sampled_from("abc"), "quantity": NUMBERS}, optional={"name": SCALARS}), max_size=6
)


@st.composite
def entities(draw: st.DrawFn) -> Entity:
    """An order with items, and fields of any shape."""
    fields = draw(st.dictionaries(NAMES, VALUES, max_size=4))
    return {"ref": "o-1", "guestRef": "g-1", "total": draw(NUMBERS), "items": draw(ITEMS), **fields}


@st.composite
def histories(draw: st.DrawFn) -> list[Entity | None]:
    """What an entity was after each of its changes: much, little, or nothing differs; some delete."""
    states: list[Entity | None] = []
    for _ in range(draw(st.integers(1, 8))):
        before = states[-1] if states else None
        if before is None:
            states.append(draw(entities()))
            continue
        kind = draw(st.sampled_from(["other", "field", "items", "same", "delete"]))
        if kind == "other":
            states.append(draw(entities()))
        elif kind == "field":
            states.append({**before, draw(NAMES): draw(VALUES)})
        elif kind == "items":
            states.append({**before, "items": draw(st.permutations([*before["items"], *draw(ITEMS)]))})
        else:
            states.append(None if kind == "delete" else dict(before))
    return states


def derived(original: Entity | None, current: Entity | None) -> list[Derived]:
    """What goes out for a change, which went through the log as bytes."""
    value = encode(envelope("shop", "i", current, original))
    return derive(Change("order", Entry("changelog.order", 0, 0, 0, b"g-1", value, {}), "shop", "i"))


@given(history=histories())
@settings(max_examples=400)
def test_all_patches_of_an_entity_from_the_beginning_give_its_newest_version(history: list[Entity | None]) -> None:
    document: Any = None
    previous: Entity | None = None
    for current in history:
        latest, *patches = derived(previous, current)
        for patch in patches:
            document = applied(document, parse(patch.value or b"")["patch"])
        assert canonical(document) == canonical(current)
        assert (latest.value is None) == (current is None)
        assert current is None or canonical(parse(latest.value or b"")) == canonical(current)
        equal = canonical(previous) == canonical(current)
        assert len(patches) == (0 if equal else 1), "a patch where something changed, and nowhere else"
        assert not patches or parse(patches[0].value or b"")["patch"], "no patch is empty"
        previous = current


@given(value=VALUES)
@settings(max_examples=300)
def test_what_is_written_is_read_as_it_was(value: Any) -> None:
    text = text_of(value)
    assert parse(text) == value
    assert text_of(parse(text)) == text
    assert canonical(parse(text)) == canonical(value)
