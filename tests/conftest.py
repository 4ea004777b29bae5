"""A platform of the tests' own: real services, in a home and on ports that no other installation uses."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings as hypothesis
from pyspark.sql import SparkSession

from changelog.sources.shop.application import Application
from infra import platform as local_platform
from infra import prepare, supervise
from infra.airflow import COMPONENTS
from infra.airflow_api import AirflowApi
from infra.artifacts.install import install
from infra.home import initialise
from infra.services import services
from runtime.settings import Settings
from runtime.spark import CATALOG, session
from serving.wait import wait
from tests.services import SHORT_LIVED, batch, feed, shop

hypothesis.register_profile("anabranch", deadline=None)  # a law does not fail because the machine is busy
hypothesis.load_profile("anabranch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rest", action="store_true", help="of the faults those that have no line that says passed")


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest) -> Iterator[Settings]:
    """A running platform with nothing in its log yet; ended afterwards, and removed unless a test has failed."""
    home = Path(tempfile.mkdtemp(prefix="anabranch-tests-")) / "home"  # pytest's own would go with the third run after
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ANABRANCH_") and name != "ANABRANCH_CACHE"]:
            patch.delenv(name)
        patch.setenv("ANABRANCH_HOME", str(home))
        patch.setenv("ANABRANCH_BATCH__SCHEDULE", "")  # Airflow runs what a test asks for, when it asks
        patch.setenv("ANABRANCH_BATCH__MAINTENANCE_SCHEDULE", "")
        patch.setenv("ANABRANCH_WATCH__SCHEDULE", "")
        patch.setenv("ANABRANCH_AIRFLOW__CLEANUP_SCHEDULE", "")
        patch.setenv("ANABRANCH_DRIFT__SCHEDULE", "")
        patch.setenv("ANABRANCH_DRIFT__REPUBLISH_AT_MOST", "5")
        patch.setenv("ANABRANCH_DRIFT__REBUILD", "start")
        patch.setenv("ANABRANCH_ARCHIVER__MAX_AGE_SECONDS", "2")  # nobody wants to wait for either
        patch.setenv("ANABRANCH_SPEED__TRIGGER_SECONDS", "0.5")
        patch.setenv("ANABRANCH_DERIVE__TRIGGER_SECONDS", "0.1")
        patch.setenv("ANABRANCH_SPEED__BUCKET_EPOCHS", "16")
        patch.setenv("ANABRANCH_SPEED__BATCH_SERVICES", '["bulk-import"]')
        patch.setenv("ANABRANCH_BATCH__IDLE_SECONDS", "15")
        patch.setenv("ANABRANCH_BATCH__RETRY_SECONDS", "1")
        for program in ("SPARK", "TRINO"):
            patch.setenv(f"ANABRANCH_{program}__JAVA_OPTIONS", SHORT_LIVED)
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
    conf = {
        "spark.sql.shuffle.partitions": "2",
        f"spark.sql.catalog.{CATALOG}.retryable_status_codes": "57P01,08003,08006",  # a test ends PostgreSQL under it
    }
    made = session(platform, "tests", "2g", conf)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def airflow(platform: Settings, lake: SparkSession) -> Iterator[AirflowApi]:
    """The platform of the other tests with profile full, and core again afterwards. What they broke on purpose is
    published by hand before: the scheduled run publishes nothing where many records are bad."""
    feed(platform, shop(seed=300, records=100))
    wait(platform)
    batch(lake, platform)
    lines: list[str] = []
    settings = local_platform.up(lines.append, "full")
    try:
        yield AirflowApi(settings)
    finally:
        local_platform.up(lines.append, "core")
        print("\n".join(lines))
    names = {service["name"] for service in local_platform.status()["services"]}
    assert names & COMPONENTS.keys() == set()
    assert [process for name in COMPONENTS for process in supervise.leftovers(platform, name)] == []


@pytest.fixture(scope="session")
def capture(platform: Settings) -> Iterator[Settings]:
    """Change data capture on the platform of the other tests, without Airflow; its database has rows before."""
    lines: list[str] = []
    programs = install(lines.append)
    settings = initialise(programs, "full")
    supervise.reread(settings, services(settings, programs))
    prepare.shop(settings)
    with psycopg.connect(settings.shop.dsn, autocommit=True) as connection:
        Application(connection, seed=1).run(rate=1000, seconds=0.3)
    try:
        local_platform.start_capture(settings, lines.append)
        yield settings
    finally:
        local_platform.up(lines.append, "core")
        print("\n".join(lines))
    assert [process for name in ("connect", "cdc") for process in supervise.leftovers(platform, name)] == []


ORDER = (
    "test_aborted", "test_end_to_end", "test_independent", "test_latest", "test_verify", "test_transactions",
    "test_commands", "test_operations", "test_safeguards", "test_quality", "test_letters", "test_provenance",
    "test_new_field", "test_cdc", "test_drift", "test_raw_archive", "test_airflow", "test_security", "ui",
    "test_orchestrator", "test_deferred", "test_heal", "test_horizon", "test_gap", "test_rebuild", "test_controls",
    "test_catalogue", "test_erasure",
)  # fmt: skip
"""The tests on one platform go on where those before left off: the first find an empty log, the later ones need
Airflow, and the last ones take the log away; the catalogue of faults knows how to go on without it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of tests on real services into ORDER; the others stay as they are, before them."""

    def place(item: pytest.Item) -> int:
        return next((n for n, name in enumerate(ORDER) if name in (item.path.stem, item.path.parent.name)), -1)

    items.sort(key=place)
