"""Every way into the log judges what it writes, as both layers do."""

from pathlib import Path

import pytest

from changelog.producer import Record
from changelog.sources import online_retail, simulate
from changelog.sources.checked import checked
from changelog.sources.simulate import Shop
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, topic_of
from tests.unit.changelog.samples import KEY, SAMPLES, change
from tests.unit.changelog.sources.test_online_retail import FIRST, packed

pytestmark = pytest.mark.unit


def test_changes_go_through_in_order_and_the_others_are_refused_with_the_reason() -> None:
    good = [Record(topic_of(entity), KEY, change(SAMPLES[entity])) for entity in ENTITIES]
    bad = [
        Record("changelog.guest", b"somebody", good[0].value),
        Record("changelog.order", KEY, b"{"),
        Record("changelog.order", KEY, None),
        Record("changelog.event", KEY, change(SAMPLES["event"], SAMPLES["event"])),
    ]
    refused: list[tuple[Record, str]] = []
    mixed = [record for pair in zip(bad, good, strict=True) for record in pair]
    assert list(checked(mixed, lambda record, reason: refused.append((record, reason)))) == good
    assert [record for record, _ in refused] == bad
    assert [reason.split(":")[0].split(" ")[0] for _, reason in refused] == ["key", "not", "not", "an"]


def test_an_invoice_that_cannot_be_valid_does_not_reach_the_log(tmp_path: Path) -> None:
    path = tmp_path / "online_retail.csv.gz"
    dear = ["536366", "D", "Dear", "1", "2010-12-01 08:26:00", "1e13", "17850.0", "France"]
    path.write_bytes(packed(FIRST, dear))
    refused: list[str] = []
    found = list(checked(online_retail.records(path), lambda record, reason: refused.append(reason)))
    assert len(found) == 4, "the good invoice, and the line of the other that is an event"
    assert len(refused) == 2
    assert all("10000000000000" in reason.replace("e13", "0" * 13) for reason in refused)


def test_the_simulated_shop_would_rather_stop_than_write_what_is_not_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "COUNTRIES", (("GB", "pounds"),))
    with pytest.raises(TerminalError, match=r"made a record for changelog\.order that is not valid: schema: .*pounds"):
        list(Shop(seed=7, start="2026-01-31T12:00:00").records(500))
