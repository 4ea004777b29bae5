"""For images: the locked jars that our own containers need, without the programs of others.

``python -m infra.artifacts.pack DIRECTORY``; ``infra/container.py`` knows what is where in it.
"""

import sys
import tarfile
from pathlib import Path

from infra.artifacts.fetch import fetch, unpack
from infra.artifacts.lock import artifacts


def pack(directory: Path) -> None:
    """Fetch Spark's jars, Kafka Connect's, and Debezium's plugin. Raises what :func:`fetch` raises."""
    for group in ("spark", "connect"):
        fetch(artifacts(group), directory / group)
    (archive,) = fetch(artifacts("debezium"), directory / "downloads")
    with tarfile.open(archive) as tar:
        unpack(tar, directory / "plugins")
    archive.unlink()


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
