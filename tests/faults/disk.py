"""A small disk of its own for one directory of the home, which can be full. Needs the right to mount."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system mounted on a directory. ``fill`` leaves no byte, ``free`` makes room again."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / ".filler"

    def fill(self) -> None:
        """Write until nothing fits."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self) -> None:
        """Give back what :meth:`fill` took. A second call does nothing."""
        self._filler.unlink(missing_ok=True)


def used(directory: Path) -> int:
    """Bytes on disk. Files may come and go meanwhile, of which du complains."""
    return int(subprocess.run(["du", "-s", "-B1", str(directory)], capture_output=True, check=False).stdout.split()[0])


@contextmanager
def small_disk(directory: Path, room: int, memory: bool) -> Iterator[SmallDisk]:
    """Put ``directory``, which nobody may use meanwhile, on a disk with ``room`` bytes more than it holds: in memory,
    or in a file with ext4. Whoever used it has to have ended again before the end, where it is put back."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk that is small enough to be full")
    size = used(directory) + room
    beside = directory.with_name(f"{directory.name}.moved")
    owner = directory.stat()
    directory.rename(beside)
    directory.mkdir()
    image = directory.with_name(f"{directory.name}.image")
    if memory:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory))
    else:
        with image.open("wb") as file:
            file.truncate(int(size * 1.15) + (16 << 20))
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(directory))
        (directory / "lost+found").rmdir()  # Kafka takes it for a partition
    os.chown(directory, owner.st_uid, owner.st_gid)
    directory.chmod(owner.st_mode & 0o7777)
    try:
        _run("cp", "-a", "--sparse=always", f"{beside}/.", str(directory))
        shutil.rmtree(beside)
        disk = SmallDisk(directory)
        yield disk
        disk.free()
    finally:
        if not beside.exists():
            beside.mkdir()
            os.chown(beside, owner.st_uid, owner.st_gid)
            _run("cp", "-a", "--sparse=always", f"{directory}/.", str(beside))
        _run("umount", str(directory))
        image.unlink(missing_ok=True)
        directory.rmdir()
        beside.rename(directory)
        directory.chmod(owner.st_mode & 0o7777)
        (directory / ".filler").unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
