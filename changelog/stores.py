"""Stores (LMDB) on local disk: whether one is whole."""

from pathlib import Path

import lmdb

DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError)
"""What a store raises in which pages are not what they were."""


def is_whole(path: Path) -> bool:
    """Whether the file of the store at ``path`` is as long as it says: one that a power cut or a full disk cut off
    would end the process that reads it. True where there is none yet. Nobody may have it open in this process."""
    file = path / "data.mdb"
    if not file.exists():
        return True
    try:
        with lmdb.open(str(path), readonly=True, lock=False) as store:
            used = (store.info()["last_pgno"] + 1) * store.stat()["psize"]
    except lmdb.Error:
        return False
    return bool(file.stat().st_size >= used)
