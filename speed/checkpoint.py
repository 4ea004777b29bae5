"""Spark's checkpoint as files: how far it is, and whether a power cut or a bad disk left it whole. Read before the
stream is started: Spark itself would fail on a file that is cut off, at every start.

Spark plans an epoch (``offsets/<epoch>``) before it runs it, and notes it as done afterwards (``commits/<epoch>``).
What it reads when it starts again are the newest of each, the plan before the newest, and ``metadata``, the name of the
query, which it makes anew where there is none. Where the stream began (``sources``) it asks only before the first plan.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

METADATA = "metadata"


class Stand(NamedTuple):
    """The newest epoch that is planned and the newest one that is done; -1 where there is none."""

    planned: int
    done: int


def stand(checkpoint: Path) -> Stand:
    """How far a checkpoint is, by the names of its files."""
    return Stand(*(max(epochs(checkpoint / kind), default=-1) for kind in ("offsets", "commits")))


def epochs(directory: Path) -> list[int]:
    """The epochs that have a file there, whatever is in it."""
    return [int(path.name) for path in directory.glob("[0-9]*") if path.name.isdigit()]


def damaged(checkpoint: Path) -> list[Path]:
    """The files that Spark would read when it starts again, behind an epoch that is planned, and could not."""
    planned, done = stand(checkpoint)
    plans = [checkpoint / "offsets" / str(epoch) for epoch in (planned, planned - 1) if epoch >= 0]
    name, note = checkpoint / METADATA, checkpoint / "commits" / str(done)
    return [
        *(path for path in plans if not path.exists() or not _is_whole(path, _is_plan)),
        *(path for path, fits in ((name, _is_name), (note, _is_note)) if path.exists() and not _is_whole(path, fits)),
    ]


def remove(path: Path) -> None:
    """Remove a file, and the sum beside it. A second call finds nothing to do."""
    path.unlink(missing_ok=True)
    _sums(path).unlink(missing_ok=True)


def _is_name(text: str) -> bool:
    return "id" in json.loads(text)


def _is_note(text: str) -> bool:
    version, content = text.splitlines()
    return version.startswith("v") and isinstance(json.loads(content), dict)


def _is_plan(text: str) -> bool:
    version, about, offsets = text.splitlines()
    return version == "v1" and all(isinstance(json.loads(line), dict) for line in (about, offsets))


def _is_whole(path: Path, fits: Callable[[str], bool]) -> bool:
    data = path.read_bytes()
    try:
        return fits(data.decode()) and _sums_agree(path, data)
    except (ValueError, TypeError):  # not in this form
        return False


def _sums_agree(path: Path, data: bytes) -> bool:
    """Whether Hadoop would read ``data``: beside a file it keeps the sums of its blocks. Without them, or where they
    are not sums at all, it looks no further."""
    kept = _sums(path).read_bytes() if _sums(path).exists() else b""
    if len(kept) < 8 or kept[:4] != b"crc\0":
        return True
    size = int.from_bytes(kept[4:8], "big")
    blocks = (data[at : at + size] for at in range(0, len(data), size))
    return kept[8:] == b"".join(zlib.crc32(block).to_bytes(4, "big") for block in blocks)


def _sums(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")
