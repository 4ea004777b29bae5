"""All views. A module of this package that defines ``VIEW`` or ``DERIVED`` is a view; nothing else has to be touched to
add one."""

import pkgutil
import re
from functools import cache
from importlib import import_module
from importlib.abc import SourceLoader
from importlib.util import find_spec

import views
from runtime.errors import DefinitionError
from views.algebra import View
from views.derived import Derived


@cache
def all_views() -> tuple[View, ...]:
    """Every view, by name. Raises DefinitionError if one is not named like its module."""
    found = []
    for name in view_names():
        view = import_module(f"views.{name}").VIEW
        if not isinstance(view, View) or view.name != name:
            raise DefinitionError(f"views/{name}.py has to define VIEW, a view named {name!r}; it defines {view!r}")
        found.append(view)
    return tuple(found)


@cache
def derived_views() -> tuple[Derived, ...]:
    """Every view over views, by name. Raises DefinitionError if one is not named like its module, or reads what is no
    view of its own."""
    found, there = [], set(view_names())
    for name in _defining("DERIVED"):
        derived = import_module(f"views.{name}").DERIVED
        if not isinstance(derived, Derived) or derived.name != name:
            raise DefinitionError(
                f"views/{name}.py has to define DERIVED, a view named {name!r}; it defines {derived!r}"
            )
        if not derived.over or not there.issuperset(derived.over):
            raise DefinitionError(
                f"views/{name}.py reads {', '.join(derived.over) or 'nothing'}; there are {', '.join(sorted(there))}"
            )
        found.append(derived)
    return tuple(found)


def personal_columns() -> dict[str, tuple[str, ...]]:
    """View → those of its columns that say who a guest is; views without any are left out."""
    everything: list[View | Derived] = [*all_views(), *derived_views()]
    found = {
        view.name: tuple(
            one.name for one in (view.columns if isinstance(view, Derived) else view.reads) if one.personal
        )
        for view in everything
    }
    return {name: columns for name, columns in found.items() if columns}


def view_names() -> tuple[str, ...]:
    """The names of all views that are folds, in order, without importing one: a view's module is named like it."""
    return _defining("VIEW")


def _defining(what: str) -> tuple[str, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(views.__path__))
    return tuple(name for name in names if re.search(rf"^{what}\b", _source(name), re.MULTILINE))


def _source(name: str) -> str:
    spec = find_spec(f"views.{name}")
    return (spec.loader.get_source(spec.name) if spec and isinstance(spec.loader, SourceLoader) else None) or ""


def views_of(pipeline: str) -> tuple[View, ...]:
    """The views of one pipeline, by name."""
    return tuple(view for view in all_views() if view.pipeline == pipeline)


def view_named(name: str) -> View:
    """The view of this name. Raises DefinitionError, naming those there are."""
    for view in all_views():
        if view.name == name:
            return view
    raise DefinitionError(f"there is no view {name!r}; there are {', '.join(view.name for view in all_views())}")
