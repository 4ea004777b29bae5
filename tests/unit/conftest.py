"""A home of its own for each test that asks for one."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``ANABRANCH_HOME``; no other setting of ours is in the environment."""
    for name in list(os.environ):
        if name.startswith("ANABRANCH_"):
            monkeypatch.delenv(name)
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("ANABRANCH_HOME", str(directory))
    return directory
