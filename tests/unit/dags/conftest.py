"""Airflow reads its configuration when it is imported, so it is imported in the tests, after this."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An ``AIRFLOW_HOME`` without a configuration: Airflow's defaults, and nothing left in the user's home."""
    home = str(tmp_path_factory.mktemp("airflow"))
    pytest.MonkeyPatch().setenv("AIRFLOW_HOME", home)
    return home
