"""The page says what the lines say: failures first of all."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults import report
from tests.faults.soak import growth
from tests.faults.table import main, page

pytestmark = pytest.mark.unit


def line(name: str, outcome: str = "passed", **more: Any) -> dict[str, Any]:
    made = report.Report(name, f"What {name} does.", kills=3, records=12_000, lost=0, doubled=0, altered=0)
    told = {**made.__dict__, "outcome": outcome, "at": "2026-11-22T05:00:00+00:00", "commit": "", "failed_before": []}
    return {key: value for key, value in (told | more).items() if key not in ("began", "last_act")}


def test_the_newest_line_of_a_case_counts(tmp_path: Path) -> None:
    lines = tmp_path / "faults.jsonl"
    assert report.newest_lines(lines) == []
    noted = [line("a", "failed", note="lost"), line("b"), line("a", "failed", note="again"), line("a", kills=7)]
    lines.write_text("".join(json.dumps(one) + "\n" for one in noted))
    newest = report.newest_lines(lines)
    assert [(one["name"], one["kills"], one["failed_before"]) for one in newest] == [
        ("a", 7, ["lost", "again"]),
        ("b", 3, []),
    ]
    assert "*failed before: lost; failed before: again*" in page(newest)


def test_a_failure_is_shown() -> None:
    text = page([line("a.b", seed=1962, commit="1a32c1c"), line("c.d", recovery_seconds=3.25), line("e.f", "failed")])
    assert "3 cases, 2 passed, 9 kills" in text
    assert "2026-11-22; commit `1a32c1c`)" in text
    assert "| **failed** `e.f` |  | 3 | 12,000 | 0 | 0 | 0 |" in text
    assert "| `a.b` | 1962 | 3 |" in text
    assert "3.2 s" in text
    assert "Not in this run: " in text
    assert "`kafka.killed-under-load`" in text


def test_controls_are_told_in_one_line() -> None:
    text = page([line("a.b"), line("controls.x[lost]"), line("controls.y", "failed")])
    assert "1 of 2 passed" in text
    assert "1 cases, 1 passed" in text
    assert "controls.x" not in text


def test_what_was_never_run_is_named() -> None:
    text = page([])
    assert "0 cases, 0 passed, 0 kills, 0 minutes (never)" in text
    assert "Not in this run: `speed.killed-around-compaction`" in text


def test_what_is_lost_is_summed() -> None:
    assert "Lost: 2. Doubled: 5." in page([line("a.b", "failed", lost=2), line("c.d", "failed", doubled=5)])


def test_growth_is_from_a_fifth_of_the_time_on() -> None:
    samples = [{"memory_mib": {"speed": 100 + n}, "lake": {"speed_files": n % 7}, "disk_mib": {}} for n in range(10)]
    samples[3]["memory_mib"] = {"speed": 0}  # it was being started
    samples[4]["lake"] = {}
    assert growth(samples) == [
        ("memory_mib", "speed", 101, 109, 109),
        ("lake", "speed_files", 2, 2, 6),
    ]


def test_lines_are_appended_and_made_into_a_page(tmp_path: Path) -> None:
    lines, target = tmp_path / "deep" / "faults.jsonl", tmp_path / "faults.md"
    assert main([str(lines), str(target)]) == 1
    for name in ("a.b", "c.d"):
        made = report.begin(report.Report(name, "What it does.", kills=1))
        report.killed()
        made.recovered()
        made.recovery_seconds = 0.25
        made.recovered()
        assert made.recovery_seconds == 0.25, "nothing was done since"
        made.told("one")
        made.told("two")
        made.write("passed", lines)
        report.end()
    report.killed()  # nobody counts
    first, second = (json.loads(text) for text in lines.read_text().splitlines())
    assert (first["kills"], second["kills"], first["note"]) == (2, 2, "one; two")
    assert first["recovery_seconds"] is not None
    assert main([str(lines), str(target)]) == 0
    assert "2 cases, 2 passed, 4 kills" in target.read_text()
