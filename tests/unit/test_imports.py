"""Imports point one way. Read from the source, so that an import inside a function counts as well."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.version import COMPUTING, ROOT

pytestmark = pytest.mark.unit

ALLOWED = {
    "runtime": {"runtime"},
    "changelog": {"changelog", "runtime"},
    "views": {"views", "runtime"},
    "speed": {"speed", "views", "changelog", "runtime"},
    "batch": {"batch", "views", "changelog", "runtime"},
    "serving": {"serving", "views", "changelog", "runtime"},
    "infra": {"infra", "serving", "speed", "batch", "views", "changelog", "runtime"},
    "dags": {"dags", "batch", "serving", "views", "changelog", "runtime"},
}
"""For each package, those of ours that it may import. Nothing imports infra, dags or tests but themselves."""

OURS = {*ALLOWED, "tests"}

VIEWS_MAY = {
    "runtime.errors",  # DefinitionError; it is pure
    "pyspark.sql.functions",
    "pyspark.sql.types",
    "pyspark.sql.Column",
    "pyspark.sql.DataFrame",
    "numpy",
    "pyarrow",  # a worker is given Arrow batches
    "numpy.typing.NDArray",
}
VIEWS_MAY_NOT = {
    "asyncio",
    "http",
    "io",
    "logging",
    "os",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "time",
}
"""Parts of the standard library that reach the world: files, network, processes, clocks, chance."""

MODULES = sorted(path.relative_to(ROOT) for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


def imported(source: str, package: str = "") -> Iterator[str]:
    """Full names of everything a module imports: ``from a import b`` gives ``a.b``. ``package`` resolves dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def breaches(source: str, package: str) -> list[str]:
    """What a module of ``package`` imports although it must not."""
    layer = package.split(".")[0]
    names = list(imported(source, package))
    wrong = [name for name in names if name.split(".")[0] in OURS - ALLOWED[layer]]
    if layer == "views":
        wrong += [name for name in names if not _pure(name)]
    return wrong


def _pure(name: str) -> bool:
    first = name.split(".")[0]
    if first == "views" or (first in sys.stdlib_module_names and first not in VIEWS_MAY_NOT):
        return True
    return any(name == allowed or name.startswith(f"{allowed}.") for allowed in VIEWS_MAY)


def test_every_package_has_modules_to_read() -> None:
    assert {path.parts[0] for path in MODULES} >= ALLOWED.keys() - {"dags"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_imports_only_what_its_package_may(module: Path) -> None:
    assert breaches((ROOT / module).read_text(), ".".join(module.parent.parts)) == []


@pytest.mark.parametrize(
    ("package", "source", "found"),
    [
        ("batch", "import serving.sql", ["serving.sql"]),
        ("batch", "def f():\n    from speed import app", ["speed.app"]),
        ("changelog.archive", "from ...infra.home import Ports", ["infra.home.Ports"]),
        ("serving", "from batch.build import build", ["batch.build.build"]),
        ("runtime", "from infra import home", ["infra.home"]),
        ("infra", "import dags.batch", ["dags.batch"]),
        ("infra", "from tests.oracle import Oracle", ["tests.oracle.Oracle"]),
        ("views", "from pyspark.sql import SparkSession", ["pyspark.sql.SparkSession"]),
        ("views", "from runtime.settings import Settings", ["runtime.settings.Settings"]),
        ("views", "import os.path", ["os.path"]),
        ("views", "import pandas", ["pandas"]),
        ("views", "from pyspark.sql import functions as F\nfrom views.algebra import View\nimport zlib", []),
    ],
)
def test_control_a_forbidden_import_is_found(package: str, source: str, found: list[str]) -> None:
    assert breaches(source, package) == found


def test_what_the_computing_modules_import_of_the_log_is_part_of_the_code_version() -> None:
    """A change that changes what is computed is another version, also where it is one import away."""
    counted = {path.relative_to(ROOT) for pattern in COMPUTING for path in ROOT.glob(pattern)}
    needed = {
        Path(*name.split(".")[:2]).with_suffix(".py")
        for path in counted
        if path.suffix == ".py" and path.parts[0] in ("changelog", "views")
        for name in imported((ROOT / path).read_text(), path.parts[0])
        if name.split(".")[0] in ("changelog", "views") and name.count(".") > 0
    }
    assert needed - counted == set()
