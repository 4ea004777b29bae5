"""A call that never comes back ends its process; one that does is left alone."""

import subprocess
import sys
import threading

import pytest

from runtime.deadline import deadline

pytestmark = pytest.mark.unit


def test_what_never_comes_back_ends_its_process_and_says_where_it_was() -> None:
    code = """
import threading
from runtime.deadline import deadline
with deadline(0.2, "waiting"):
    threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "waiting did not come back within 0.2 s" in done.stderr
    assert "in wait" in done.stderr


def test_what_comes_back_goes_on() -> None:
    with deadline(0.05, "working"):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(5)  # it would have ended this process
    assert timers
