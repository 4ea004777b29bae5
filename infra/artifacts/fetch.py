"""Fetch locked artifacts: with progress, resumed after an interruption, checked, and never twice."""

import fcntl
import hashlib
import os
import shutil
import ssl
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from infra.artifacts.lock import Artifact
from runtime.errors import TerminalError, TransientError

ATTEMPTS = 4


def cache_directory() -> Path:
    """``$ANABRANCH_CACHE``, by default ``anabranch`` in the user's cache directory."""
    own = os.environ.get("ANABRANCH_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own).absolute() if own else base / "anabranch"


def repository() -> str:
    """Root of the Maven repository: ``$ANABRANCH_MAVEN_URL``, by default Maven Central."""
    return os.environ.get("ANABRANCH_MAVEN_URL", "https://repo1.maven.org/maven2").rstrip("/")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, so that two processes do not make it at once."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def fetch(artifacts: list[Artifact], directory: Path) -> list[Path]:
    """Have every artifact in ``directory``. Files that are there are not asked for again, so this works offline then.

    Raises TerminalError if a file is not what the lock says, TransientError if the repository cannot be reached; a
    part that has arrived stays and the next call goes on from it.
    """
    with locked(directory):
        missing = [artifact for artifact in artifacts if not (directory / artifact.file_name).exists()]
        if missing:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            with Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task(missing[0].group, total=sum(artifact.size for artifact in missing))
                for artifact in missing:
                    progress.update(task, description=artifact.file_name[:40].ljust(40))
                    fetch_one(artifact, directory / artifact.file_name, lambda done: progress.advance(task, done))
    return [directory / artifact.file_name for artifact in artifacts]


def fetch_one(artifact: Artifact, target: Path, advance: Callable[[int], None]) -> None:
    """Fetch one file to ``target`` through ``target.part``. An artifact without a checksum is not checked."""
    part = target.with_name(target.name + ".part")
    url = f"{repository()}/{artifact.path}"
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            _download(url, part, advance)
            break
        except httpx.HTTPStatusError as error:
            raise TransientError(
                f"{url} answered {error.response.status_code}; is the repository the right one?"
            ) from error
        except (httpx.HTTPError, OSError) as error:
            failure = error
    else:
        raise TransientError(
            f"{url} cannot be fetched ({failure}); what has arrived is kept, run the same command again to go on"
        )
    if artifact.sha256 and (found := _sha256(part)) != artifact.sha256:
        part.unlink()
        raise TerminalError(
            f"{url}: SHA-256 is {found}, the lock says {artifact.sha256}. The file was thrown away; if this repeats, "
            "the repository does not hold what was locked"
        )
    part.rename(target)


def _download(url: str, part: Path, advance: Callable[[int], None]) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    context = ssl.create_default_context()
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=60, verify=context) as response:
        if have and response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it had arrived
        response.raise_for_status()
        resumed = response.status_code == httpx.codes.PARTIAL_CONTENT
        if resumed:
            advance(have)
        with part.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes(1 << 20):
                file.write(chunk)
                advance(len(chunk))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(tar: tarfile.TarFile, directory: Path) -> None:
    """All of an archive, and nothing outside of ``directory``. Python before 3.11.4 (as Debian 12 has) knows
    no filters: there the checksum of the archive has to do."""
    tar.extraction_filter = getattr(tarfile, "tar_filter", None)
    tar.extractall(directory)


def replace_directory(made: Path, target: Path) -> None:
    """Put a finished directory in its place in one step."""
    if target.exists():
        shutil.rmtree(target)
    made.rename(target)
