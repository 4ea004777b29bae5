"""Class data of Spark's JVM: made once, drivers start in half the time (docs/decisions/0033)."""

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from infra.artifacts.install import made_in, run_program
from infra.preflight import java_version
from runtime.errors import PreflightError
from runtime.spark_submit import spark_home

NAME = "classes.jsa"

SECONDS = 400
"""How long making it may take."""


def spark_classes(jars: Path, say: Callable[[str], None], directory: Path | None = None) -> Path | None:
    """The archive of classes for drivers with ``jars``, made unless it is there.

    It belongs to a Python environment, a Java and a set of jars, and lies in the environment (or in ``directory``).
    Where it cannot be made the answer is None, and drivers start as they do without.
    """
    directory = directory or Path(sys.prefix) / "share" / "anabranch"

    def make(made: Path) -> None:
        say("preparing Spark's classes for quick starts (about a minute, once)")
        for old in directory.glob("spark-classes-*"):
            shutil.rmtree(old)
        command = [sys.executable, "-m", "infra.artifacts.training", str(made / NAME)]
        environment = {
            **os.environ, "ANABRANCH_HOME": str(made.with_name("home")), "ANABRANCH_SPARK__JARS": str(jars),
            "ANABRANCH_SPARK__MASTER": "local[2]", "SPARK_CONF_DIR": str(made.with_name("conf")),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip
        run_program(command, environment, SECONDS)
        if not (made / NAME).exists():
            raise PreflightError("the JVM left no archive")

    try:
        directory.mkdir(parents=True, exist_ok=True)
        return made_in(directory / f"spark-classes-{_made_of(jars):08x}", make) / NAME
    except subprocess.TimeoutExpired:
        reason = f"not made within {SECONDS} s"
    except (OSError, PreflightError) as error:
        reason = str(error)
    say(f"no class data for Spark, which starts more slowly: {reason}")
    return None


def _made_of(jars: Path) -> int:
    """A number for what the archive depends on: Java, and the jars by their paths."""
    paths = [str(path) for of in (jars, spark_home() / "jars") for path in sorted(of.glob("*.jar"))]
    return zlib.crc32("\n".join([java_version(), *paths]).encode())
