"""A Spark session on the platform's lake, in the test process."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from runtime.settings import Settings
from runtime.spark import session


@pytest.fixture(scope="session")
def spark(platform: Settings) -> Iterator[SparkSession]:
    made = session(platform, "tests", "2g", {"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()
