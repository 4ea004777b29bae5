"""Kill points: they kill at exactly the passage that is named, everything of the process group, and once in a home."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.version import ROOT

pytestmark = pytest.mark.unit

SURVIVED = 0
KILLED = -signal.SIGKILL

WITH_A_CHILD = """
import subprocess, sys
from runtime import faults
subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
faults.point("a")
"""

BESIDE_ANOTHER = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "from runtime import faults; faults.point('a')"]).returncode)
"""


def run(code: str, home: Path, kill_at: str | None) -> tuple[int, str]:
    """Run Python in a session of its own: (status, output). Returns when nobody holds its output any more."""
    environment = {"ANABRANCH_HOME": str(home), "PYTHONPATH": str(ROOT)}
    if kill_at:
        environment["ANABRANCH_KILL_AT"] = kill_at
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        start_new_session=True,
        check=False,
    )
    return done.returncode, done.stdout


def passing(*points: str) -> str:
    """Code that passes these points and says after each how far it came."""
    lines = (f"faults.point({name!r}); print({number}, end='', flush=True)" for number, name in enumerate(points, 1))
    return "\n".join(["from runtime import faults", *lines])


@pytest.mark.parametrize(
    ("kill_at", "status", "came"),
    [
        (None, SURVIVED, "12345"),
        ("c", SURVIVED, "12345"),
        ("a", KILLED, ""),
        ("ab", KILLED, "1"),
        ("a#3", KILLED, "1234"),
        ("a#4", SURVIVED, "12345"),
    ],
)
def test_a_process_dies_at_the_passage_that_is_named(
    tmp_path: Path, kill_at: str | None, status: int, came: str
) -> None:
    assert run(passing("a", "ab", "a", "ab", "a"), tmp_path, kill_at) == (status, came)


def test_it_dies_once_in_a_home_and_again_in_another(tmp_path: Path) -> None:
    code = passing("a", "a")
    homes = [tmp_path / "one", tmp_path / "another"]
    for home in homes:
        home.mkdir()
    assert [run(code, home, "a#2")[0] for home in (homes[0], homes[0], homes[1])] == [KILLED, SURVIVED, KILLED]


def test_another_point_of_the_same_home_kills_again(tmp_path: Path) -> None:
    assert [run(passing("a", "b"), tmp_path, point)[0] for point in ("a", "b", "a")] == [KILLED, KILLED, SURVIVED]


def test_what_a_process_started_dies_with_it(tmp_path: Path) -> None:
    """The child holds the output open: had it lived on, this would not return."""
    assert run(WITH_A_CHILD, tmp_path, "a") == (KILLED, "")


def test_a_process_that_leads_no_group_leaves_the_others_alone(tmp_path: Path) -> None:
    assert run(BESIDE_ANOTHER, tmp_path, "a") == (SURVIVED, f"{KILLED}\n")
