"""A platform of the tests' own: real services, in a home and on ports that no other installation uses."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from infra import platform as local_platform
from runtime.settings import Settings
from runtime.spark import session


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest) -> Iterator[Settings]:
    """A running platform with nothing in its log yet; ended afterwards, and removed unless a test has failed."""
    home = Path(tempfile.mkdtemp(prefix="anabranch-tests-")) / "home"  # pytest's own would go with the third run after
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ANABRANCH_") and name != "ANABRANCH_CACHE"]:
            patch.delenv(name)
        patch.setenv("ANABRANCH_HOME", str(home))
        patch.setenv("ANABRANCH_BATCH__SCHEDULE", "")  # Airflow runs what a test asks for, when it asks
        patch.setenv("ANABRANCH_BATCH__IDLE_SECONDS", "30")
        lines: list[str] = []
        try:
            yield local_platform.up(lines.append)
        finally:
            local_platform.down(lines.append)
            print("\n".join(lines))  # shown where something failed
            if not request.session.testsfailed:
                shutil.rmtree(home.parent)


@pytest.fixture(scope="session")
def lake(platform: Settings) -> Iterator[SparkSession]:
    """A Spark session on the platform's lake, in the test process."""
    made = session(platform, "tests", "2g", {"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()
