"""Fetching: checked, resumed after an interruption, never twice, and offline afterwards."""

import random
import re
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from infra.artifacts.fetch import ATTEMPTS, cache_directory, fetch, unpack
from infra.artifacts.lock import Artifact
from runtime.errors import TerminalError, TransientError
from tests.unit.infra.artifacts.repository import Repository

pytestmark = pytest.mark.unit

MIB = 1 << 20
COORDINATE = "org.example.tools:tool:1.2:jar"
CONTENT = random.Random(1).randbytes(3 * MIB + 17)
HALF = MIB + 99
"""Where connections are cut; what is written goes by whole MiB."""


@pytest.fixture
def artifact(repository: Repository) -> Artifact:
    return repository.add(COORDINATE, CONTENT)


def kept(directory: Path) -> dict[str, int]:
    """Files of a directory and their sizes, the lock left out."""
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.name != ".lock"}


def test_a_file_arrives_under_its_own_name(repository: Repository, artifact: Artifact, tmp_path: Path) -> None:
    assert fetch([artifact], tmp_path / "jars") == [tmp_path / "jars" / "tool-1.2.jar"]
    assert (tmp_path / "jars" / "tool-1.2.jar").read_bytes() == CONTENT
    assert repository.asked == [("/org/example/tools/tool/1.2/tool-1.2.jar", None)]


def test_what_is_there_is_not_asked_for_again_and_needs_no_network(
    repository: Repository, artifact: Artifact, tmp_path: Path
) -> None:
    first = fetch([artifact], tmp_path)
    another = repository.add("org.example:other:1:jar", b"other")
    assert fetch([artifact, another], tmp_path)[:1] == first
    repository.close()
    assert fetch([artifact, another], tmp_path)[:1] == first
    assert [path for path, _ in repository.asked] == [f"/{artifact.path}", f"/{another.path}"]


def test_a_file_that_is_not_what_was_locked_is_refused_and_thrown_away(
    repository: Repository, artifact: Artifact, tmp_path: Path
) -> None:
    forged = replace(artifact, sha256="0" * 64)
    with pytest.raises(TerminalError, match=re.escape(f"{repository.url}/{artifact.path}: SHA-256 is")) as refused:
        fetch([forged], tmp_path)
    assert "0" * 64 in str(refused.value)
    assert artifact.sha256 in str(refused.value)
    assert "thrown away" in str(refused.value)
    assert kept(tmp_path) == {}


@pytest.mark.parametrize("ranges", [True, False], ids=["in parts", "whole files only"])
def test_a_cut_connection_is_taken_up_again_whatever_the_server_can(
    repository: Repository, artifact: Artifact, tmp_path: Path, ranges: bool
) -> None:
    repository.ranges, repository.cuts = ranges, [HALF]
    (path,) = fetch([artifact], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [header for _, header in repository.asked] == [None, f"bytes={MIB}-"]


def test_after_an_interruption_the_next_call_goes_on_where_it_stopped(
    repository: Repository, artifact: Artifact, tmp_path: Path
) -> None:
    repository.cuts = [HALF] + [0] * (ATTEMPTS - 1)
    with pytest.raises(TransientError, match="run the same command again") as interrupted:
        fetch([artifact], tmp_path)
    assert f"{repository.url}/{artifact.path}" in str(interrupted.value)
    assert kept(tmp_path) == {"tool-1.2.jar.part": MIB}
    (path,) = fetch([artifact], tmp_path)
    assert path.read_bytes() == CONTENT
    assert repository.asked[-1][1] == f"bytes={MIB}-"
    assert kept(tmp_path) == {"tool-1.2.jar": len(CONTENT)}


def test_a_part_that_is_whole_already_is_taken(repository: Repository, artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "tool-1.2.jar.part").write_bytes(CONTENT)
    (path,) = fetch([artifact], tmp_path)
    assert path.read_bytes() == CONTENT
    assert [header for _, header in repository.asked] == [f"bytes={len(CONTENT)}-"]


def test_a_part_of_something_else_is_refused_and_the_next_call_begins_anew(
    repository: Repository, artifact: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "tool-1.2.jar.part").write_bytes(b"of another version")
    with pytest.raises(TerminalError, match="thrown away"):
        fetch([artifact], tmp_path)
    (path,) = fetch([artifact], tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_repository_without_the_file_is_named_at_once(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match=r"tool-1\.2\.jar answered 404; is the repository the right one"):
        fetch([Artifact("any", COORDINATE, "0" * 64, 1)], tmp_path)
    assert len(repository.asked) == 1


def test_a_repository_that_cannot_be_reached_is_named_with_the_remedy(
    repository: Repository, artifact: Artifact, tmp_path: Path
) -> None:
    repository.close()
    with pytest.raises(TransientError, match=r"cannot be fetched .*run the same command again") as unreachable:
        fetch([artifact], tmp_path)
    assert f"{repository.url}/{artifact.path}" in str(unreachable.value)


def test_two_at_once_fetch_once(repository: Repository, artifact: Artifact, tmp_path: Path) -> None:
    ready = threading.Barrier(2)

    def one() -> list[Path]:
        ready.wait(10)
        return fetch([artifact], tmp_path)

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(one) for _ in range(2)]
    assert [future.result() for future in done] == [[tmp_path / "tool-1.2.jar"]] * 2
    assert len(repository.asked) == 1


@pytest.mark.parametrize(
    ("variables", "directory"),
    [
        ({"ANABRANCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/anabranch"),
        ({"HOME": "/c"}, "/c/.cache/anabranch"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], directory: str
) -> None:
    for name in ("ANABRANCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_directory() == Path(directory)


@pytest.mark.skipif(not hasattr(tarfile, "tar_filter"), reason="this Python knows no filters")
def test_an_archive_puts_nothing_outside(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("inside", "../outside"):
            tar.addfile(tarfile.TarInfo(name))
    with tarfile.open(tmp_path / "a.tar") as tar, pytest.raises(tarfile.OutsideDestinationError):
        unpack(tar, tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["inside"]
    assert not (tmp_path / "outside").exists()
