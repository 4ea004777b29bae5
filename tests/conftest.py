"""A platform of the tests' own: real services, in a home and on ports that no other installation uses."""

import os
from collections.abc import Iterator

import pytest

from infra import platform as local_platform
from runtime.settings import Settings


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A running platform with nothing in its log yet; ended afterwards."""
    home = tmp_path_factory.mktemp("platform") / "home"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ANABRANCH_") and name != "ANABRANCH_CACHE"]:
            patch.delenv(name)
        patch.setenv("ANABRANCH_HOME", str(home))
        lines: list[str] = []
        try:
            yield local_platform.up(lines.append)
        finally:
            local_platform.down(lines.append)
            print("\n".join(lines))  # shown where something failed
