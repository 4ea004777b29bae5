"""Profile full: Airflow runs the batch layer in containers, and a database is captured."""

import json
from collections.abc import Callable, Iterator

import pytest

from infra.airflow_api import AirflowApi
from infra.compose import ComposeProfile
from runtime.version import ROOT
from tests.compose.conftest import Installation
from tests.services import until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def full(installed: Callable[..., Installation]) -> Iterator[Installation]:
    made = installed(ComposeProfile.full)
    made.up()
    yield made
    made.down()


def test_airflow_runs_the_batch_layer(full: Installation) -> None:
    full.simulate(2_000, seed=3)
    full.anabranch("wait")
    api = AirflowApi(full.settings)  # on the port that is published on loopback
    until(lambda: "batch_views" in {one["dag_id"] for one in api.get("dags?limit=100")["dags"]}, 180, "it is parsed")
    tasks = api.wait("batch_views", api.trigger("batch_views"), 500)
    assert tasks["publish"] == "success"
    assert full.query("SELECT batch_records > 0 FROM serving.boundary WHERE view = 'traffic'") == [[True]]
    full.assert_exact()


def test_nobody_does_what_is_not_his_to_do(full: Installation) -> None:
    full.simulate(500, seed=4)  # something of both layers, where the test before did not run
    full.anabranch("wait")
    full.anabranch("batch")
    inside = ["-v", f"{ROOT / 'tests' / 'integration'}:/attempts:ro", "--entrypoint", "python", "rebuild"]
    said = full.compose("run", "--rm", "--no-deps", "-T", *inside, "/attempts/attempts.py", "Supervisor")
    assert json.loads(said.splitlines()[-1]) == []


def test_changes_of_the_shop_are_captured(full: Installation) -> None:
    full.anabranch("shop", "--rate", "20", "--seconds", "10")
    customers = full.query("SELECT count(*) FROM shop.public.customers")
    assert customers[0][0] > 0

    def is_captured() -> bool:
        full.anabranch("wait")
        return full.query("SELECT count(*) FROM serving.guest_latest WHERE ref LIKE 'shop-%'") == customers

    until(is_captured, 120, "every customer is in the merged view")
