"""The core of the platform in containers: the main job, how containers are confined, and what happens when they die."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.compose import ComposeProfile
from runtime import trino
from runtime.errors import TerminalError
from runtime.settings import read
from tests.compose.conftest import Installation
from tests.compose.engine import docker
from tests.services import secrets_of, until

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
        assert not [1 for secret in secrets_of(core.settings) if secret in json.dumps(found)], one["Service"]
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


def test_analysts_query_from_the_machine(core: Installation) -> None:
    settings = read(core.directory / "config" / "outside" / "analyst.json")
    asked = "SELECT sum(events) FROM lake.serving.traffic"
    assert [list(row) for row in trino.execute(trino.connect(settings), asked)[1]] == core.query(asked)
    with pytest.raises(TerminalError, match="Access Denied"):
        trino.execute(trino.connect(settings), "SELECT * FROM lake.batch.traffic")


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


def test_what_derive_missed_is_derived_while_it_stands_still(core: Installation) -> None:
    core.compose("stop", "derive")
    core.simulate(500, seed=9)
    core.anabranch("wait")
    core.anabranch("batch")  # archived
    core.let_go()
    assert "records of the archive" in core.compose("run", "--rm", "-T", "rebuild")
    assert "Kafka has everything" in core.compose("run", "--rm", "-T", "rebuild")
    core.compose("up", "--wait", "--no-build", "derive")


def test_what_is_removed_and_made_anew_goes_on_from_its_volumes(core: Installation) -> None:
    views = core.query("SELECT * FROM serving.revenue ORDER BY 1, 2, 3")
    core.compose("down", "--timeout", "30")
    assert docker("ps", "-q", "--filter", f"label=com.docker.compose.project={core.project}") == ""
    core.up()
    assert core.query("SELECT * FROM serving.revenue ORDER BY 1, 2, 3") == views
