"""What of a guest is looked for, and what is left out because it is not his alone."""

from datetime import UTC, datetime
from typing import Any

import pytest

from changelog.records import Place
from runtime.settings import Settings
from serving import erasure
from serving.audit import Record

pytestmark = pytest.mark.unit


def record(entity: str, **current: Any) -> Record:
    place, time = Place(f"changelog.{entity}", 0, 1), datetime(2026, 1, 1, tzinfo=UTC)
    return Record(place, time, "change", "s", "i", entity, "17850", None, None, None, current, None, True)


def test_what_others_have_too_and_what_says_nothing_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def of_others(_settings: Settings, ref: str, values: set[str]) -> set[str]:
        assert ref == "17850"
        asked.append(set(values))
        return {"session-moved"}

    monkeypatch.setattr(erasure, "of_others", of_others)
    records = [
        record("guest", ref="17850", email="ann@x.org"),
        record("guest", ref="17850", email="unknown"),  # stands where an address is expected
        record("order", ref="536365"),
        record("session", ref="session-moved"),
        record("session", ref="session-1"),
    ]
    assert erasure.identifying(Settings(), "17850", records) == (["ann@x.org", "session-1"], 3)
    assert asked == [{"ann@x.org", "session-1", "session-moved"}]
