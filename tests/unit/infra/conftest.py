"""Programs that are nowhere: enough for what only writes configuration."""

from pathlib import Path

import pytest

from infra.artifacts.install import Programs


@pytest.fixture
def programs() -> Programs:
    names = ("spark_jars", "kafka_jars", "connect_jars", "connect_plugins", "trino", "postgres", "minio", "java")
    return Programs(**{name: Path("/programs") / name for name in names})
