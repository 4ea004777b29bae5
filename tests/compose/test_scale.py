"""Profile scale: three brokers of which one is lost, two archivers, a Spark cluster, Trino's workers."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.compose import ComposeProfile
from tests.compose.conftest import Installation
from tests.services import until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def scale(installed: Callable[..., Installation]) -> Iterator[Installation]:
    made = installed(ComposeProfile.scale)
    made.up()
    yield made
    made.down()


def test_a_broker_is_lost_and_nothing_that_was_acknowledged(scale: Installation) -> None:
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(scale.simulate, 3_000, 4, 100)
        until(lambda: scale.logged() > 300, 120, "records come in")
        assert not writing.done()
        scale.compose("kill", "kafka-2")  # and it stays away: the engine does not start what it was told to kill
        acknowledged = writing.result()
    assert scale.logged() >= acknowledged > 300
    scale.anabranch("wait")
    scale.anabranch("batch")
    scale.assert_exact()
    scale.compose("start", "kafka-2")
    until(lambda: scale.inspect("kafka-2")["State"]["Health"]["Status"] == "healthy", 120, "the broker is back")


def test_batch_jobs_run_on_the_cluster_and_queries_on_the_workers(scale: Installation) -> None:
    scale.simulate(500, seed=5)
    scale.anabranch("batch")
    master = scale.compose("exec", "-T", "spark-master", "curl", "-fsS", "http://spark-master:8080/json/")
    assert "anabranch-batch" in {one["name"] for one in json.loads(master)["completedapps"]}
    nodes = "SELECT coordinator, count(*) FROM system.runtime.nodes WHERE state = 'active' GROUP BY 1 ORDER BY 1"
    assert scale.query(nodes) == [[False, 2], [True, 1]]
    assert scale.query("SELECT count(*) > 0 FROM serving.order_latest") == [[True]]


def test_a_driver_without_the_clusters_secret_gets_no_work_done(scale: Installation) -> None:
    count = "from pyspark.sql import SparkSession as S; import socket; print('counted', S.builder"
    count += ".master('spark://spark-master:7077').config('spark.driver.host', socket.gethostname())"
    count += ".config('spark.driver.bindAddress', '0.0.0.0').getOrCreate().range(9).count())"
    words = ["timeout", "120", "python", "-c", count]
    assert "counted 9" in scale.compose("exec", "-T", "cli", *words)
    said = scale.compose("exec", "-T", "-e", "SPARK_CONF_DIR=/tmp", "cli", *words, check=False)
    assert "counted" not in said


def test_one_archiver_takes_over_from_the_other(scale: Installation) -> None:
    scale.compose("kill", "archiver")
    scale.simulate(500, seed=6)
    scale.anabranch("wait")
    scale.anabranch("batch")
    assert scale.query("SELECT speed_records FROM serving.boundary WHERE view = 'traffic'") == [[0]], "all is archived"
    scale.assert_exact()
