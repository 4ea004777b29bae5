"""A limit for calls that do not keep to their own."""

import faulthandler
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("deadline")

EXIT_STATUS = 1
"""It may be started again."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """End the process, with status 1 and the stacks of all threads in its log, if what is done within takes longer.

    For calls into a client's own code that may never return: nothing can be raised in there, and a service that stands
    still for good helps nobody, where one that has ended is started again by its supervisor. What it does has to be
    safe against being killed.
    """

    def end() -> None:
        log.error("%s did not come back within %g s; ending, to be started again", what, seconds)
        faulthandler.dump_traceback()
        os._exit(EXIT_STATUS)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
