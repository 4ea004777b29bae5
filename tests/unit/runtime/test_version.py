"""The code version is a function of the names and contents of the files that compute, and of nothing else."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import version
from runtime.version import COMPUTING, ROOT, code_version

pytestmark = pytest.mark.unit

PACKAGES = ("changelog", "views", "speed")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the packages, taken for the root."""
    copy = tmp_path / "copy"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(version, "ROOT", copy)
    code_version.cache_clear()
    yield copy
    code_version.cache_clear()


def anew() -> str:
    code_version.cache_clear()
    return code_version()


def test_every_pattern_finds_files() -> None:
    assert [pattern for pattern in COMPUTING if not any(ROOT.glob(pattern))] == []


def test_equal_files_have_equal_versions_wherever_they_are(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = anew()
    assert len(here) == 12
    assert int(here, 16) >= 0
    moved = tree.rename(tree.with_name("elsewhere"))
    monkeypatch.setattr(version, "ROOT", moved)
    for path in moved.rglob("*.py"):
        os.utime(path, (0, 0))
    assert anew() == here


@pytest.mark.parametrize(
    "name",
    ["views/fold.py", "views/revenue.py", "speed/app.py", "changelog/typed.py", "changelog/schemas/order.json"],
)
def test_a_change_of_what_computes_is_another_version_and_taking_it_back_is_not(tree: Path, name: str) -> None:
    before = anew()
    text = (tree / name).read_text()
    (tree / name).write_text(text + "\n")
    changed = anew()
    (tree / name).write_text(text)
    assert changed != before
    assert anew() == before


def test_a_new_a_renamed_and_a_removed_view_are_other_versions(tree: Path) -> None:
    versions = [anew()]
    (tree / "views" / "new.py").write_text("")
    versions.append(anew())
    (tree / "views" / "new.py").rename(tree / "views" / "newer.py")
    versions.append(anew())
    (tree / "views" / "revenue.py").unlink()
    versions.append(anew())
    assert len(set(versions)) == 4


@pytest.mark.parametrize("name", ["changelog/producer.py", "changelog/archive/archiver.py", "views/README.md"])
def test_a_change_of_what_does_not_compute_is_the_same_version(tree: Path, name: str) -> None:
    before = anew()
    with (tree / name).open("a") as file:
        file.write("\n")
    assert anew() == before


def test_a_process_keeps_the_version_with_which_it_began(tree: Path) -> None:
    before = anew()
    (tree / "views" / "new.py").write_text("")
    assert code_version() == before
