"""Data that is kept beside the project and is not part of it: ``../shared/data``."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def shared_data(name: str) -> Path:
    """A file or directory of the shared data. Skips the test where it is missing."""
    path = SHARED_DATA / name
    if not path.exists():
        pytest.skip(f"shared data {name!r} is not beside the project (looked in ../shared/data)")
    return path
