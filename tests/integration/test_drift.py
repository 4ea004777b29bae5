"""Drift between the shop's database and the views: caused on purpose, measured, and mended by its severity."""

import json
from typing import Any

import pytest

from runtime import ops
from runtime.settings import Settings
from serving import watch as watching
from tests.services import assert_exact, run
from tests.shop import await_equal, captured, connected, meddle, tables, writing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TIMES = {"createdAt": "2026-11-21T10:00:00.000Z", "modifiedAt": "2026-11-21T10:00:00.000Z"}


def drift(*options: str, status: int = 0) -> dict[str, Any]:
    """What the command says, by entity."""
    found: dict[str, Any] = json.loads(run("drift", "--json", *options, status=status))
    return found


def differing(found: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {entity: (one["missing"], one["extra"], one["changed"]) for entity, one in found.items()}


NOTHING = dict.fromkeys(("guest", "session", "order"), (0, 0, 0))


@pytest.mark.slow
def test_what_is_on_its_way_is_no_drift(capture: Settings) -> None:
    with writing(capture, seed=31, rate=30) as application:
        found = drift("--look")
        assert sum(application.done.values()) > 0, "nothing was on its way"
    assert differing(found) == NOTHING
    await_equal(capture)
    there = tables(capture)
    assert {entity: one["compared"] for entity, one in drift("--look").items()} == {
        entity: len(there[f"{entity}_latest"]) for entity in NOTHING
    }


def test_a_little_is_republished_and_says_so(capture: Settings) -> None:
    """A guest is deleted, an order altered, and a guest made that the shop never had."""
    there = tables(capture)
    guest, order = min(there["guest_latest"])[0], min(there["order_latest"])[0]
    meddle(capture, {guest: None, order: {"country": "XX"}, "shop-guest-987654321": TIMES})
    found = drift("--look")
    assert differing(found) == {"guest": (1, 1, 0), "session": (0, 0, 0), "order": (0, 0, 1)}
    assert found["order"]["examples"] == [{"ref": order, "kind": "changed", "columns": ["country"]}]
    before = republished(capture)
    number = len(captured(capture))
    found = drift()
    assert {entity: (one["severity"], one["action"]) for entity, one in found.items()} == {
        "guest": ("minor", "republished"), "session": ("none", "none"), "order": ("minor", "republished"),
    }  # fmt: skip
    await_equal(capture)
    told = republished(capture) - before
    assert sorted(one.rpartition(":")[2] for one in told) == sorted([guest, order, "shop-guest-987654321"])
    assert len(captured(capture)) == number + 3
    assert differing(drift()) == NOTHING
    with ops.connect(capture) as connection:
        rows = connection.execute("SELECT * FROM drift ORDER BY measured_at DESC, entity DESC LIMIT 6").fetchall()
    assert [(row["severity"], row["action"]) for row in reversed(rows)] == [
        ("minor", "republished"), ("minor", "republished"), ("none", "none"), *[("none", "none")] * 3,
    ]  # fmt: skip


def republished(settings: Settings) -> set[str]:
    """Identifiers of what was republished."""
    identifiers = (made["provenance"]["identifier"] for *_, made, _ in captured(settings))
    return {identifier for identifier in identifiers if ":republished:" in identifier}


@pytest.mark.slow
def test_what_the_log_refuses_is_no_drift(capture: Settings) -> None:
    with connected(capture) as shop:
        row = shop.execute("SELECT max(id) FROM orders WHERE currency IS NOT NULL").fetchone()
        shop.execute("UPDATE orders SET currency = NULL WHERE id = %s", row)
        found = drift("--look")
        assert (found["order"]["refused"], found["order"]["severity"]) == (1, "none")
        shop.execute("UPDATE orders SET currency = 'GBP' WHERE id = %s", row)
    await_equal(capture)


@pytest.mark.slow
def test_much_needs_a_rebuild_which_mends_it(capture: Settings) -> None:
    """The limit of the tests is five."""
    assert capture.drift.republish_at_most == 5
    some = sorted(row[0] for row in tables(capture)["guest_latest"])[:6]
    meddle(capture, {ref: {"country": "XX"} for ref in some})
    before = len(captured(capture))
    found = drift(status=1)
    assert (found["guest"]["severity"], found["guest"]["action"]) == ("major", "rebuild proposed")
    assert len(captured(capture)) == before, "nothing is republished"
    assert "guest has drifted" in watching.watch(capture).alerts
    assert differing(drift("--rebuild")) == NOTHING
    await_equal(capture)
    assert_exact(capture)
    assert differing(drift()) == NOTHING
    assert "guest has drifted" not in watching.watch(capture).alerts
