"""Named kill points: how the tests kill a process at exactly the moment that is dangerous.

``ANABRANCH_KILL_AT=speed.after-commit`` makes the process end itself with SIGKILL when it passes that point, once for
each home (a marker file remembers it, or a restarted process would die again for ever); ``name#3`` at the third
passage. Without the variable a point costs one lookup. SIGKILL leaves no chance to tidy up, which is the point.
"""

import os
import signal
from collections import Counter

from runtime.settings import home_directory

_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Die here if the environment says so; otherwise do nothing."""
    wanted = os.environ.get("ANABRANCH_KILL_AT")
    if not wanted or wanted.partition("#")[0] != name:
        return
    _passed[name] += 1
    if _passed[name] < int(wanted.partition("#")[2] or 1):
        return
    marker = home_directory() / f"killed-at-{wanted}"
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # the JVM and the workers die with the driver
    os.kill(os.getpid(), signal.SIGKILL)
