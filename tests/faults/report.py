"""What each fault did and cost: one line of JSON a case, from which ``tests.faults.table`` makes the page.

The case that runs has the one :class:`Report` there is at a time (``current()``), so that helpers count kills wherever
they kill.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

FILE = Path("test-results") / "faults.jsonl"


@cache
def commit() -> str:
    """The commit that the tests are of, short; nothing outside of a repository. Asked once, as the first case begins:
    what runs was read then."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


@dataclass
class Report:
    """A line of the table. Seconds are None where nothing was timed; ``recovery_seconds``: from the last thing done to
    the platform until every view covered everything acknowledged, and the archiver too where the case waits for it."""

    name: str
    what: str
    seed: int = 0
    kills: int = 0
    records: int = 0
    lost: int | None = None
    doubled: int | None = None
    altered: int | None = None
    bad: int | None = None
    queries: int = 0
    refused_queries: int = 0
    recovery_seconds: float | None = None
    seconds: float = 0.0
    outcome: str = "not finished"
    note: str = ""
    at: str = ""
    commit: str = field(default_factory=commit)
    began: float = field(default_factory=time.monotonic)
    last_act: float | None = None

    def acted(self) -> None:
        """Something was just done to the platform: recovery counts from the last such moment."""
        self.last_act = time.monotonic()

    def recovered(self) -> None:
        """All is well again. Until something else is done a second call changes nothing."""
        if self.last_act is not None:
            self.recovery_seconds = round(time.monotonic() - self.last_act, 1)
            self.last_act = None

    def told(self, text: str) -> None:
        """Add to the note."""
        self.note = f"{self.note}; {text}" if self.note else text

    def write(self, outcome: str, path: Path = FILE) -> None:
        """Append the line."""
        self.outcome, self.seconds = outcome, round(time.monotonic() - self.began, 1)
        self.at = datetime.now(UTC).isoformat(timespec="seconds")
        line = {key: value for key, value in asdict(self).items() if key not in ("began", "last_act")}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def newest_lines(path: Path = FILE) -> list[dict[str, Any]]:
    """The last line of each case, in the order in which cases came first; none where nothing was written. The notes of
    lines before that did not pass are in its ``failed_before``."""
    found: dict[str, dict[str, Any]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        before = found.get(line["name"], {})
        failed = [before["note"]] if before.get("outcome", "passed") != "passed" else []
        found[line["name"]] = {**line, "failed_before": [*before.get("failed_before", ()), *failed]}
    return list(found.values())


_current: list[Report] = []


def begin(report: Report) -> Report:
    """Make ``report`` the one that is counted in."""
    _current[:] = [report]
    return report


def end() -> None:
    """Nobody is counted in any more."""
    _current.clear()


def current() -> Report | None:
    """The report of the case that runs."""
    return _current[0] if _current else None


def killed() -> None:
    """A process was killed, or killed itself at a named point."""
    if report := current():
        report.kills += 1
        report.acted()


def kill(pid: int | None) -> None:
    """SIGKILL a process, and count it; one that is gone already is not counted."""
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed()


def kill_tree(pid: int | None) -> None:
    """SIGKILL a process and everything that it started, children first found; counted as one."""
    if not pid:
        return
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children(recursive=True)
        kill(pid)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
