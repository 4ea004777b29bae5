"""The code version: what a generation of the speed layer and a batch run were computed with."""

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COMPUTING = (
    "changelog/schemas/*.json",
    "changelog/classify.py",
    "changelog/erased.py",
    "changelog/identities.py",
    "changelog/typed.py",
    "changelog/validation.py",
    "views/*.py",
    "speed/*.py",
)
"""The files that decide what is computed. A change in any of them is another version."""


@cache
def code_version() -> str:
    """First 12 hex digits of the SHA-256 over the names and contents of the computing files."""
    digest = hashlib.sha256()
    for pattern in COMPUTING:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
