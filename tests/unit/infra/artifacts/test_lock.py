"""The lock file: complete, checked, and what the list of versions asks for."""

import json
import re

import pyspark
import pytest

from infra.artifacts.lock import LOCK_FILE, Artifact, artifacts, digest, go_module
from infra.artifacts.resolve import SPARK_JARS

pytestmark = pytest.mark.unit

GROUPS = {"spark", "kafka", "connect", "debezium", "trino", "postgres"}
LOCKED = [Artifact(**entry) for entry in json.loads(LOCK_FILE.read_text())["maven"]]


@pytest.mark.parametrize("artifact", LOCKED, ids=lambda artifact: artifact.coordinate)
def test_every_artifact_has_checksum_size_licence_and_coordinate(artifact: Artifact) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", artifact.sha256)
    assert artifact.size > 0
    assert artifact.licence not in ("", "not stated")
    assert re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+:(jar|tar\.gz)(:[\w.-]+)?", artifact.coordinate)


def test_every_group_that_is_installed_is_locked_and_no_two_files_share_a_name() -> None:
    assert {artifact.group for artifact in LOCKED} == GROUPS
    names = [(artifact.group, artifact.file_name) for artifact in LOCKED]
    assert len(set(names)) == len(names)


def test_the_lock_holds_what_is_asked_for() -> None:
    assert [artifact.coordinate for artifact in artifacts("spark")] == SPARK_JARS
    assert f":{pyspark.__version__}:" in SPARK_JARS[0]


def test_the_go_program_has_a_checksum() -> None:
    assert re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", go_module().sum)


@pytest.mark.parametrize(
    ("coordinate", "path"),
    [
        ("org.a.b:c:1.0:jar", "org/a/b/c/1.0/c-1.0.jar"),
        ("org.a:c:1.0:jar:linux-x86_64", "org/a/c/1.0/c-1.0-linux-x86_64.jar"),
        ("io.a:c:476:tar.gz", "io/a/c/476/c-476.tar.gz"),
    ],
)
def test_a_coordinate_gives_the_path_of_a_maven_repository(coordinate: str, path: str) -> None:
    assert Artifact("any", coordinate, "", 0).path == path


def test_directories_are_named_by_what_is_in_them() -> None:
    digests = {group: digest(group) for group in sorted(GROUPS)}
    assert len(set(digests.values())) == len(digests)
    assert digest("spark") == digests["spark"]
