"""What the speed application does about its own state before it has anything to do with Spark."""

from pathlib import Path

import lmdb
import pytest

from runtime.errors import TransientError
from runtime.settings import Settings
from speed.app import DAMAGED, alone

pytestmark = pytest.mark.unit


def test_the_state_of_a_home_belongs_to_one_application_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_HOME", str(tmp_path))
    settings = Settings()
    with alone(settings):
        with pytest.raises(TransientError, match="another speed application"), alone(settings):
            pass
        with pytest.raises(TransientError), alone(settings):
            pass
    with alone(settings):
        pass


def test_damage_is_told_from_other_failures_of_a_store() -> None:
    def said(error: lmdb.Error) -> str:
        """As a worker's traceback ends."""
        return f"  File ...\n{type(error).__module__}.{type(error).__qualname__}: somewhere: {error}"

    for error in (
        lmdb.CorruptedError("here"),
        lmdb.PageNotFoundError("here"),
        lmdb.InvalidError("here"),
        lmdb.PanicError("here"),
    ):
        assert DAMAGED.search(said(error))
    for other in (
        lmdb.MapFullError("here"),
        lmdb.ReadersFullError("here"),
        lmdb.LockError("here"),
        lmdb.DiskError("here"),
    ):
        assert not DAMAGED.search(said(other))
