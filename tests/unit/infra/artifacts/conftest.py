"""A repository for each test, and the environment that leads to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.infra.artifacts.repository import Repository, serving


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    with serving() as made:
        monkeypatch.setenv("ANABRANCH_MAVEN_URL", made.url)
        monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "cache"))
        yield made
