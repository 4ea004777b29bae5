"""All views. A module of this package that defines ``VIEW`` is a view; nothing else has to be touched to add one."""

import pkgutil
from functools import cache
from importlib import import_module

import views
from runtime.errors import DefinitionError
from views.algebra import View


@cache
def all_views() -> tuple[View, ...]:
    """Every view, by name. Raises DefinitionError if two share a name."""
    found: dict[str, View] = {}
    for module in pkgutil.iter_modules(views.__path__):
        view = getattr(import_module(f"views.{module.name}"), "VIEW", None)
        if isinstance(view, View) and found.setdefault(view.name, view) is not view:
            raise DefinitionError(f"two views are named {view.name!r}")
    return tuple(found[name] for name in sorted(found))


def views_of(pipeline: str) -> tuple[View, ...]:
    """The views of one pipeline, by name."""
    return tuple(view for view in all_views() if view.pipeline == pipeline)


def view_named(name: str) -> View:
    """The view of this name. Raises DefinitionError, naming those there are."""
    for view in all_views():
        if view.name == name:
            return view
    raise DefinitionError(f"there is no view {name!r}; there are {', '.join(view.name for view in all_views())}")
