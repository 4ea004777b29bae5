"""A copy of this checkout with a home of its own, for tests that change the code that runs."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from runtime.version import ROOT


class Checkout:
    """Its files are in ``root``; ``environment`` is what its commands run with."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in listed.splitlines():
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
        cache = {"ANABRANCH_CACHE": os.environ["ANABRANCH_CACHE"]} if "ANABRANCH_CACHE" in os.environ else {}
        self.environment = kept | cache | {
            "ANABRANCH_HOME": str(directory / "home"),
            "ANABRANCH_ARCHIVER__MAX_AGE_SECONDS": "2",
            "PYTHONPATH": str(self.root),
        }  # fmt: skip

    def run(self, command: str, *more: str, status: int = 0) -> str:
        """Run a command line that begins with ``anabranch``, ``more`` words after it. Returns its standard output."""
        words = [*shlex.split(command)[1:], *more]
        done = subprocess.run(
            [sys.executable, "-m", "infra.cli", *words],
            cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout
