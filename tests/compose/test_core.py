"""The core of the platform in containers: the main job, how containers are confined, and what happens when they die."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.compose import ComposeProfile
from tests.compose.conftest import Installation
from tests.compose.engine import docker
from tests.services import until

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1200)]


KNOWS = {name: [f"{name}.json"] for name in ("archiver", "commands", "derive", "speed")} | {"cli": ["batch.json"]}
"""Service → the settings files that it is given."""


@pytest.fixture(scope="module")
def core(installed: Callable[..., Installation]) -> Iterator[Installation]:
    made = installed(ComposeProfile.core)
    made.up()
    yield made
    made.down()


def test_containers_are_confined(core: Installation) -> None:
    running = [one for one in core.containers() if one["State"] == "running"]
    assert len(running) == 9
    for one in running:
        found = core.inspect(one["Service"])
        host, config = found["HostConfig"], found["Config"]
        assert int(config["User"].partition(":")[0]) > 0
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["Memory"] > 0
        published = [binding for bindings in found["NetworkSettings"]["Ports"].values() for binding in bindings or ()]
        assert all(binding["HostIp"] == "127.0.0.1" for binding in published)
        secrets = [core.settings.postgres_password, core.settings.s3.secret_key, core.settings.ops.password]
        assert not [1 for secret in secrets if secret.get_secret_value() in json.dumps(found)], one["Service"]
        mounts = [mount["Source"] for mount in found["Mounts"] if mount["Destination"] == "/run/secrets/settings"]
        assert [Path(mount).name for mount in mounts] == KNOWS.get(one["Service"], [])


def test_up_again_starts_nothing_that_runs(core: Installation) -> None:
    running = [one["Service"] for one in core.containers() if one["State"] == "running"]

    def started() -> dict[str, tuple[str, str]]:
        found = {service: core.inspect(service) for service in running}
        return {service: (one["Id"], one["State"]["StartedAt"]) for service, one in found.items()}

    before = started()
    core.up()
    assert started() == before


def test_the_main_job(core: Installation) -> None:
    acknowledged = core.simulate(3_000, seed=1)
    assert core.logged() == acknowledged
    core.anabranch("wait")
    events = core.query("SELECT sum(events) FROM serving.traffic")
    report = json.loads(core.anabranch("batch", "--json"))
    assert report["publication"] is not None
    assert core.query("SELECT sum(events) FROM serving.traffic") == events, "the boundary moved, the answer did not"
    assert core.query("SELECT batch_records > 0 FROM serving.boundary WHERE view = 'traffic'") == [[True]]
    core.assert_exact()


@pytest.mark.timeout(1500)
def test_what_is_killed_comes_back_and_nothing_is_lost_or_counted_twice(core: Installation) -> None:
    before, acknowledged = core.logged(), 0
    with ThreadPoolExecutor(1) as pool:
        for seed, service in enumerate(("archiver", "speed", "derive", "kafka-1", "minio"), 2):
            writing, there = pool.submit(core.simulate, 1_500, seed, 100), core.logged()
            until(lambda: core.logged() > there, 60, "records come in")  # noqa: B023  # called at once
            assert not writing.done()
            core.crash(service)
            acknowledged += writing.result()
    assert core.logged() >= before + acknowledged > before
    core.anabranch("wait")
    core.anabranch("batch")
    core.assert_exact()


def test_what_is_removed_and_made_anew_goes_on_from_its_volumes(core: Installation) -> None:
    views = core.query("SELECT * FROM serving.revenue ORDER BY 1, 2, 3")
    core.compose("down", "--timeout", "30")
    assert docker("ps", "-q", "--filter", f"label=com.docker.compose.project={core.project}") == ""
    core.up()
    assert core.query("SELECT * FROM serving.revenue ORDER BY 1, 2, 3") == views
