"""The lock file: coordinates, SHA-256 and size of every artifact, in groups by what uses them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

LOCK_FILE = Path(__file__).with_name("lock.json")


@dataclass(frozen=True)
class Artifact:
    """A file of a Maven repository. ``coordinate`` is group:artifact:version:extension[:classifier]; ``licence`` is
    what its POM says, or its parent's."""

    group: str
    coordinate: str
    sha256: str
    size: int
    licence: str = ""

    @property
    def file_name(self) -> str:
        _, artifact, version, extension, *classifier = self.coordinate.split(":")
        return "-".join([artifact, version, *classifier]) + f".{extension}"

    @property
    def path(self) -> str:
        """Path below the root of a Maven repository."""
        group, artifact, version, *_ = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.file_name}"


@dataclass(frozen=True)
class GoModule:
    """A Go program, built from source; ``sum`` is the module's checksum as in go.sum."""

    module: str
    version: str
    sum: str
    licence: str = ""


def artifacts(group: str) -> list[Artifact]:
    """The locked artifacts of one group, in the order of the lock."""
    return [Artifact(**entry) for entry in json.loads(LOCK_FILE.read_text())["maven"] if entry["group"] == group]


def go_module() -> GoModule:
    """The locked MinIO server."""
    (entry,) = json.loads(LOCK_FILE.read_text())["go"]
    return GoModule(**entry)


def digest(group: str) -> str:
    """A short digest of a group's checksums, to name the directory that is made from it."""
    return hashlib.sha256("".join(artifact.sha256 for artifact in artifacts(group)).encode()).hexdigest()[:12]
