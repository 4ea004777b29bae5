"""Class data of Spark's JVM: made once, found again, and done without where it cannot be made."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.artifacts import classes
from infra.artifacts.classes import spark_classes

pytestmark = pytest.mark.unit


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Training that leaves a file at once; what was run."""
    commands: list[list[str]] = []
    really = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        if "infra.artifacts.training" not in command:
            return really(command, **options)
        commands.append(command)
        Path(command[-1]).write_text("classes")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_it_is_made_once_and_anew_for_other_jars(tmp_path: Path, trained: list[list[str]]) -> None:
    jars, said = tmp_path / "jars", list[str]()
    jars.mkdir()
    (jars / "a.jar").touch()
    first = spark_classes(jars, said.append, tmp_path / "made")
    assert first is not None
    assert first.read_text() == "classes"
    assert spark_classes(jars, said.append, tmp_path / "made") == first
    assert len(trained) == len(said) == 1
    (jars / "b.jar").touch()
    second = spark_classes(jars, said.append, tmp_path / "made")
    assert second != first
    assert second is not None
    assert list((tmp_path / "made").rglob("*.jsa")) == [second], "the old one is gone"


def test_where_it_cannot_be_made_that_is_said_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    assert spark_classes(tmp_path, said.append, tmp_path / "file" / "made") is None
    assert "starts more slowly" in said[0]
    monkeypatch.setenv("ANABRANCH_SPARK__JAVA_OPTIONS", "-XX:NoSuchOption")
    assert spark_classes(tmp_path, said.append, tmp_path / "made") is None
    assert "starts more slowly" in said[-1]
    assert not list((tmp_path / "made").rglob("*.jsa"))


def test_one_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "SECONDS", 0.01)
    said: list[str] = []
    assert spark_classes(tmp_path, said.append, tmp_path / "made") is None
    assert "not made within" in said[-1]
