"""The catalogue of faults: each a named, seeded, repeatable case on the real processes.

A case is a function of a :class:`tests.faults.scene.Scene`; its docstring's first line is what the table says it does.
``@fault(...)`` puts it into the catalogue, where pytest, the table and the soak test find it.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from tests.faults.scene import Scene

CASES = ("speed", "archive", "batch", "log", "outages", "inputs", "last")
"""Modules of ``tests.faults.cases``, in the order in which they run: the last ones take the log away."""


@dataclass(frozen=True)
class Fault:
    """``quick``: `make test` runs it too. ``refusable``: queries may be refused meanwhile, because the fault takes away
    what answers them. ``alone``: the log has to stand still but for what the case writes, or the platform is not what
    it was afterwards; the soak test leaves it out."""

    name: str
    what: str
    steps: Callable[[Scene], None]
    quick: bool = False
    refusable: bool = False
    alone: bool = False
    seconds: int = 600

    @property
    def seed(self) -> int:
        """From 1 to 8999: the same for the same name, and another for another (a test compares all)."""
        return zlib.crc32(self.name.encode()) % 8999 + 1


_catalogue: dict[str, Fault] = {}


def fault(
    name: str, quick: bool = False, refusable: bool = False, alone: bool = False, seconds: int = 600
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Put a case into the catalogue under ``name`` (component, dot, what happens)."""

    def add(steps: Callable[[Scene], None]) -> Callable[[Scene], None]:
        assert name not in _catalogue, f"{name} is in the catalogue already"
        what = (steps.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        assert what, f"{name} has no docstring: it says in the table what the case does"
        _catalogue[name] = Fault(name, " ".join(what.split()), steps, quick, refusable, alone, seconds)
        return steps

    return add


def catalogue() -> dict[str, Fault]:
    """All cases by name, in the order in which they run."""
    for module in CASES:
        import_module(f"tests.faults.cases.{module}")
    return dict(_catalogue)
