"""Views over views: SQL over merged views or their states, computed when it is asked for.

Nothing is stored for them, so they are exact wherever what they read is. Their text carries the text of the views they
read, pins included: a query that reads one of them sees one pair of each, whatever is published meanwhile.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.errors import DefinitionError
from views.algebra import Field, View

_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A view over views: ``sql`` is a Trino SELECT in which ``{revenue}`` is the merged view of this name and
    ``{revenue_states}`` its merged partial states, groups that cancelled out included.

    ``columns`` are what people read, in the order of the SELECT, with Trino types.
    """

    name: str
    comment: str
    columns: tuple[Field, ...]
    sql: str

    @property
    def over(self) -> tuple[str, ...]:
        """The names of the views that it reads."""
        return tuple(dict.fromkeys(name.removesuffix("_states") for name in _NAME.findall(self.sql)))

    def text(self, states: Mapping[str, tuple[View, str]]) -> str:
        """The SELECT, given each view it reads with the SELECT of its merged states.

        Raises DefinitionError for one that is not there.
        """

        def put(match: re.Match[str]) -> str:
            name = match[1].removesuffix("_states")
            if name not in states:
                raise DefinitionError(f"view {self.name} reads {name!r}, which is no view")
            view, select = states[name]
            return f"(\n{select if match[1].endswith('_states') else view.read_sql(select)}\n)"

        return _NAME.sub(put, self.sql)
