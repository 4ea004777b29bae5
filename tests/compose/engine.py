"""A container engine for the tests: the one that runs, or one that is started for them and ended afterwards."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 60


def docker(*words: str, check: bool = True, seconds: float = 900, stdin: bytes | None = None) -> str:
    """Run docker and return what it said. Raises AssertionError with both outputs if it fails."""
    done = subprocess.run(["docker", *words], capture_output=True, check=False, timeout=seconds, input=stdin)
    said = done.stdout.decode(errors="replace")
    assert not check or done.returncode == 0, (
        f"docker {' '.join(words)}\n{said}\n{done.stderr.decode(errors='replace')}"
    )
    return said


def answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@contextmanager
def engine() -> Iterator[None]:
    """An engine that answers. One that was not there before is gone afterwards, with all its processes, also where this
    process is asked to end meanwhile (SIGTERM)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what pytest and `finally` know how to end by
    if answers():
        yield
        return
    assert os.geteuid() == 0, "the engine is started by root"
    assert shutil.which("dockerd"), "apt-get install docker.io"
    work = Path(tempfile.mkdtemp(prefix="anabranch-docker-"))
    with (work / "dockerd.log").open("wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--exec-root", str(work / "run"), "--pidfile", str(work / "pid"), "--log-level", "warn"],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + SECONDS
        while not answers():
            waiting = daemon.poll() is None and time.monotonic() < deadline
            assert waiting, (work / "dockerd.log").read_text()[-2000:]
            time.sleep(0.2)
        yield
    finally:
        for container in docker("ps", "-q", check=False).split():
            docker("rm", "-f", container, check=False)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(SECONDS)
        shutil.rmtree(work, ignore_errors=True)
