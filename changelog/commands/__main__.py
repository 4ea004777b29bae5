"""The service ``commands``: ``python -m changelog.commands``

One instance answers; another one waits until it is gone. Exit status 78 means that it must not be started again before
somebody has looked: the message says what to do.
"""

import logging
import sys
import time
from threading import Event

from changelog.commands.schema import command_topics
from changelog.commands.service import Handler
from changelog.topics import check_topics
from runtime.heartbeat import Heartbeat
from runtime.ops import connect, try_commands_lock
from runtime.service import serve
from runtime.settings import Settings

log = logging.getLogger("commands")

CONTRACT_CHECK_SECONDS = 30.0


def main() -> int:
    """Run until told to stop. Returns the exit status."""
    return serve("commands", run)


def run(settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
    """Wait until no other instance answers, then answer until it is time to stop."""
    told: set[str] = set()

    def alive(what: str) -> bool:
        if what not in told:
            log.info("waiting: %s", what)
            told.add(what)
        heartbeat.beat("starting", {"waiting": what})
        return not stopping.is_set()

    with connect(settings) as lock:  # held as long as the connection is
        waited = 0
        while not try_commands_lock(lock):
            if not waited:
                log.info("another instance answers; waiting until it is gone")
            waited += 1
            time.sleep(0.5)
            if stopping.is_set():
                return
        heartbeat.beat("starting", {})
        check_topics(settings, command_topics(settings))
        with Handler(settings) as handler:
            begun, checked = handler.begin(alive), time.monotonic()
            while begun and not stopping.is_set():
                heartbeat.beat("running", handler.detail())
                handler.step()
                if time.monotonic() - checked > CONTRACT_CHECK_SECONDS:
                    check_topics(settings, command_topics(settings))
                    checked = time.monotonic()
            heartbeat.beat("stopping", handler.detail())


if __name__ == "__main__":
    sys.exit(main())
