"""Class data of Spark's JVM: made once, drivers start in half the time (docs/decisions/0033)."""

import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from infra.artifacts.fetch import locked
from infra.preflight import java
from runtime.spark_submit import spark_home

SECONDS = 400
"""How long making it may take."""


def spark_classes(jars: Path, say: Callable[[str], None], directory: Path | None = None) -> Path | None:
    """The archive of classes for drivers with ``jars``, made unless it is there.

    It belongs to a Python environment, a Java and a set of jars, and lies in the environment (or in ``directory``).
    Where it cannot be made the answer is None, and drivers start as they do without.
    """
    directory = directory or Path(sys.prefix) / "share" / "anabranch"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / f"spark-classes-{_made_of(jars):08x}.jsa"
        if target.exists():
            return target
        with locked(directory):
            return target if target.exists() else _make(target, jars, say)
    except OSError as error:
        say(f"no class data for Spark, which starts more slowly: {error}")
        return None


def _made_of(jars: Path) -> int:
    """A number for what the archive depends on: Java, and the jars by their paths."""
    version = subprocess.run([java(), "-version"], capture_output=True, check=True).stderr
    paths = [str(path) for of in (jars, spark_home() / "jars") for path in sorted(of.glob("*.jar"))]
    return zlib.crc32(version + "\n".join(paths).encode())


def _make(target: Path, jars: Path, say: Callable[[str], None]) -> Path | None:
    say("preparing Spark's classes for quick starts (about half a minute, once)")
    for old in target.parent.glob("spark-classes-*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [sys.executable, "-m", "infra.artifacts.training", str(made)]
        environment = {
            **os.environ, "ANABRANCH_HOME": f"{scratch}/home", "ANABRANCH_SPARK__JARS": str(jars),
            "ANABRANCH_SPARK__MASTER": "local[2]", "SPARK_CONF_DIR": f"{scratch}/conf",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            say(f"no class data for Spark, which starts more slowly: not made within {SECONDS} s")
            return None
        if done.returncode or not made.exists():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
            say(f"no class data for Spark, which starts more slowly: {said}")
            return None
        made.rename(target)
    return target
