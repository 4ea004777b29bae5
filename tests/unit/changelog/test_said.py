"""What the log last said, without Kafka: what a store makes of changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changelog.changes import Change
from changelog.envelope import encode, envelope
from changelog.exact import parse
from changelog.latest import Version
from changelog.reader import Entry
from changelog.said import Said
from runtime.errors import TransientError
from runtime.settings import Settings
from tests.unit.changelog.samples import SAMPLES

pytestmark = pytest.mark.unit

ORDER = SAMPLES["order"]


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Said]:
    made = Said(Settings(), tmp_path / "said", ["order", "guest"])
    made._caught_up = True  # with a log that has nothing
    yield made
    made.close()


def change(
    offset: int,
    current: dict[str, Any] | None,
    original: dict[str, Any] | None = None,
    partition: int = 0,
    entity: str = "order",
) -> Change:
    """A change of an order as it was read; its append time is its offset."""
    value = encode(envelope("shop", f"i-{offset}", current, original))
    of = current or original or {}
    key = of["ref" if entity == "guest" else "guestRef"].encode()
    return Change(
        entity, Entry(f"changelog.{entity}", partition, offset, offset, key, value, {}), "shop", f"i-{offset}"
    )


def test_the_newest_version_is_kept_with_where_it_was_said(said: Said) -> None:
    said._apply([change(5, ORDER), change(7, {**ORDER, "status": "PAID"}, ORDER)])
    expected = parse(encode({**ORDER, "status": "PAID"}))
    assert said.get("order", "g-1", "o-1") == Version(expected, 7, "shop", "i-7", 0)
    assert said.get("order", "g-2", "o-1") is None
    assert said.get("order", "g-1", "o-2") is None
    assert said.get("guest", "g-1", "o-1") is None


def test_an_older_version_never_replaces_a_newer_one(said: Said) -> None:
    """The changelog is read again from where the derived topics are complete, and these may be further."""
    said._apply([change(7, {**ORDER, "status": "PAID"})])
    said._apply([change(5, ORDER), change(6, None, ORDER)])
    version = said.get("order", "g-1", "o-1")
    assert version is not None
    assert (version.offset, version.current["status"]) == (7, "PAID")


def test_a_deleted_one_is_absent_everywhere(said: Said) -> None:
    said._apply([change(5, ORDER), change(6, None, ORDER)])
    assert said.get("order", "g-1", "o-1") is None
    assert said.find("order", "o-1") is None
    assert list(said.of_guest("order", "g-1")) == []
    assert said.count("order") == 0


def test_an_order_that_moves_to_another_guest_is_found_there(said: Said) -> None:
    moved = {**ORDER, "guestRef": "g-2"}
    for partition in (0, 1):  # another one, or the same
        said._apply([change(5, ORDER), change(6, None, ORDER), change(8, moved, partition=partition)])
        found = said.find("order", "o-1")
        assert found is not None
        assert (found[0], found[1].partition) == ("g-2", partition)
        assert said.get("order", "g-1", "o-1") is None
        assert [version.offset for version in said.of_guest("order", "g-2")] == [8]
        said._apply([change(9, None, moved, partition=partition)])


def test_of_two_that_a_broken_chain_left_the_one_appended_last_is_found(said: Said) -> None:
    said._apply([change(9, ORDER), change(4, {**ORDER, "guestRef": "g-2"}, partition=1)])
    found = said.find("order", "o-1")
    assert found is not None
    assert found[0] == "g-1"


def test_all_of_a_guest_are_told(said: Said) -> None:
    orders = [{**ORDER, "ref": f"o-{n}"} for n in range(20)]
    said._apply([change(n, order) for n, order in enumerate(orders)])
    said._apply([change(50, {**ORDER, "ref": "o-x", "guestRef": "g-2"})])
    said._apply([change(60, SAMPLES["guest"], entity="guest")])
    assert sorted(v.offset for v in said.of_guest("order", "g-1")) == list(range(20))
    assert [v.offset for v in said.of_guest("guest", "g-1")] == [60]
    assert list(said.of_guest("order", "g")) == []
    assert (said.count("order"), said.count("guest")) == (21, 1)


def test_refs_may_be_long_and_of_any_letters(said: Said) -> None:
    ref = "Größe \U0001f4cf " * 200
    said._apply([change(1, {**ORDER, "ref": ref, "guestRef": ref})])
    found = said.find("order", ref)
    assert found is not None
    assert found[0] == ref


def test_what_an_earlier_life_left_in_its_directory_is_gone(tmp_path: Path) -> None:
    first = Said(Settings(), tmp_path / "said", ["order"])
    first._apply([change(1, ORDER)])
    first.close()
    second = Said(Settings(), tmp_path / "said", ["order"])
    second._caught_up = True
    assert second.count("order") == 0
    second.close()


def test_who_has_not_caught_up_says_nothing(tmp_path: Path) -> None:
    """Rather than that there is nothing: a writer would take an update for a create."""
    said = Said(Settings(), tmp_path / "said", ["order"])
    said._apply([change(1, ORDER)])
    for ask in (
        lambda: said.get("order", "g-1", "o-1"),
        lambda: said.find("order", "o-1"),
        lambda: list(said.of_guest("order", "g-1")),
    ):
        with pytest.raises(TransientError, match="catch up"):
            ask()
    said.close()


def test_events_have_no_versions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="event"):
        Said(Settings(), tmp_path, ["order", "event"])
