"""docker-compose.yml is valid: Compose itself reads it in every combination of profiles, and the specification's schema
accepts it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from infra.compose import ArchiverChoice, ComposeProfile, init
from runtime.version import ROOT

pytestmark = pytest.mark.compose

CORE, FULL, SCALE = ComposeProfile
SPECIFICATION = "github.com/compose-spec/compose-go/v2@v2.9.1"
CORE_SERVICES = {"postgres", "minio", "kafka-1", "stores", "derive", "commands", "speed", "trino", "views", "cli"}
ARCHIVING = {"secor": {"zookeeper", "secor", "archive-guard"}, "anabranch": {"archiver"}}
MORE = {
    FULL: {
        "connect",
        "capture",
        "cdc",
        "airflow-api",
        "airflow-scheduler",
        "airflow-dag-processor",
        "airflow-triggerer",
    },
    SCALE: {"kafka-2", "kafka-3", "trino-worker", "spark-master", "spark-worker"},
}


def configured(tmp_path: Path, profiles: tuple[ComposeProfile, ...], archiver: ArchiverChoice) -> dict[str, Any]:
    """What Compose makes of the file."""
    init(tmp_path / "config", tmp_path / "env", profiles, archiver)
    words = ["--project-directory", str(ROOT), "--env-file", str(tmp_path / "env"), "config", "--format", "json"]
    done = subprocess.run(["docker", "compose", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower()
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("archiver", ["secor", "anabranch"])
@pytest.mark.parametrize("profiles", [(CORE,), (FULL,), (SCALE,), (FULL, SCALE)])
def test_profiles_and_the_choice_of_the_archiver_select_services(
    tmp_path: Path, profiles: tuple[ComposeProfile, ...], archiver: ArchiverChoice
) -> None:
    found = configured(tmp_path, profiles, archiver)["services"]
    expected = CORE_SERVICES.union(ARCHIVING[archiver], *(MORE.get(profile, set()) for profile in profiles))
    if SCALE in profiles:
        expected.add({"anabranch": "archiver-2", "secor": "secor-2"}[archiver])
    assert found.keys() == expected


def test_a_one_shot_is_not_started_again_by_the_engine(tmp_path: Path) -> None:
    found = configured(tmp_path, (FULL,), "anabranch")["services"]
    restarting = {name: service["restart"] for name, service in found.items()}
    assert {name for name, policy in restarting.items() if policy == "no"} == {"stores", "views", "capture"}
    assert set(restarting.values()) == {"no", "unless-stopped"}


def test_the_schema_of_the_specification_accepts_it(tmp_path: Path) -> None:
    done = subprocess.run(["go", "mod", "download", "-json", SPECIFICATION], capture_output=True, text=True, check=True)
    schema = json.loads((Path(json.loads(done.stdout)["Dir"]) / "schema" / "compose-spec.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    for archiver in ARCHIVING:
        validator.validate(configured(tmp_path, (FULL, SCALE), archiver))  # type: ignore[arg-type]  # a key is a str
