"""A reader in the background: asks the merged views all the time, and notes where an answer cannot be true.

Events are never changed or deleted, so their number never falls, and never exceeds what writers have sent; sessions
count the same events. A query may be refused only while what answers it is away.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from runtime import trino
from runtime.errors import AnabranchError
from runtime.settings import Settings

QUERIES = {
    "traffic": "SELECT coalesce(sum(events), 0) FROM lake.serving.traffic",
    "sessions": "SELECT coalesce(sum(events), 0) FROM lake.serving.sessions",
}
PAUSE_SECONDS = 2.0
"""Between queries: asked every half second, Trino took most of a core for its plans."""


class Answer(NamedTuple):
    """``number`` is None where the query was refused; ``error`` says why."""

    view: str
    at: float
    number: int | None
    error: str = ""


class Prober:
    """Use as a context manager. ``at_most``: how many events there can be by now, sent or in the log."""

    def __init__(self, settings: Settings, at_most: Callable[[], int]) -> None:
        self._settings, self._at_most = settings, at_most
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers: list[Answer] = []
        self.lies: list[str] = []
        self.lived = False
        """Whether it asked to the end."""

    def _run(self) -> None:
        highest = dict.fromkeys(QUERIES, 0)
        while not self._over.is_set():
            for view, sql in QUERIES.items():
                answer = self._ask(view, sql)
                self.answers.append(answer)
                if answer.number is not None:
                    self._judge(answer, highest[view])
                    highest[view] = max(highest[view], answer.number)
                self._over.wait(PAUSE_SECONDS)

    def _ask(self, view: str, sql: str) -> Answer:
        try:
            _, rows = trino.execute(trino.connect(self._settings), sql)
            return Answer(view, time.monotonic(), int(rows[0][0]))
        except (AnabranchError, OSError) as error:
            return Answer(view, time.monotonic(), None, str(error)[:300])

    def _judge(self, answer: Answer, highest: int) -> None:
        assert answer.number is not None
        if answer.number < highest:
            self.lies.append(f"{answer.view} had {highest} events and has {answer.number} now")
        if answer.number > (most := self._at_most()):
            self.lies.append(f"{answer.view} has {answer.number} events; there are at most {most}")

    @property
    def refused(self) -> list[Answer]:
        """Queries without an answer."""
        return [answer for answer in self.answers if answer.number is None]

    def __enter__(self) -> "Prober":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lived = self._thread.is_alive()
        self._over.set()
        self._thread.join(120)
