"""What every long-running service of ours has in common: how it begins, how it is told to stop, how it ends."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from runtime.errors import TerminalError, TransientError
from runtime.heartbeat import Heartbeat
from runtime.settings import Settings

EXIT_CONFIGURATION = 78
"""It must not be started again before somebody has looked: the message says what to do."""


def serve(name: str, work: Callable[[Settings, Heartbeat, threading.Event], None]) -> int:
    """Run ``work`` until a signal says stop, which is when the event is set. Returns the exit status.

    ``name`` is the service's, unless ``$ANABRANCH_SERVICE`` gives another one: there may be two archivers. 0 after a
    stop that was asked for, 78 for an error of ours that trying again cannot help, 1 for one that it may.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    log = logging.getLogger(name)
    settings = Settings()
    heartbeat = Heartbeat(settings.ops.dsn, os.environ.get("ANABRANCH_SERVICE", name))
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        work(settings, heartbeat, stopping)
    except (TerminalError, TransientError) as error:
        log.error("%s", error)
        heartbeat.beat("failed", {"error": str(error)})
        return EXIT_CONFIGURATION if isinstance(error, TerminalError) else 1
    log.info("stopped")
    return 0
