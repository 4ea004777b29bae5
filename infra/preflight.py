"""What the machine must have before anything is started. All that is missing is said at once, with the remedy."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil

from infra.home import Ports, port_is_free
from runtime.errors import PreflightError
from runtime.settings import Profile

MEMORY_GIB = 8
FULL_GIB = 2.5
"""What profile full needs beside it: Airflow, and change data capture."""

DISK_GIB = 6


def preflight(home: Path, ports: Ports | None, profile: Profile = "core") -> None:
    """Raise PreflightError with one line for each thing that is missing. ``ports``: those that must be free now."""
    problems = [
        *_memory(MEMORY_GIB + (FULL_GIB if profile == "full" else 0)),
        *_disk(home),
        *_java(),
        *_root(),
        *(_ports(ports) if ports else ()),
    ]
    if problems:
        raise PreflightError("this machine is not ready:\n" + "\n".join(f"  - {problem}" for problem in problems))


def _memory(needed: float) -> list[str]:
    total = psutil.virtual_memory().total / 2**30
    if total < needed * 0.95:
        return [f"{total:.1f} GiB of memory, {needed:g} GiB are needed"]
    return []


def _disk(home: Path) -> list[str]:
    existing = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    if free < DISK_GIB:
        return [f"{free:.1f} GiB free on the disk of {home}, {DISK_GIB} GiB are needed; set ANABRANCH_HOME elsewhere"]
    return []


def java() -> str:
    """The Java that Spark will use: ``$JAVA_HOME``'s, or the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def java_version() -> str:
    """What that Java says of its version, in several lines. Raises OSError, subprocess.CalledProcessError."""
    return subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr


def _java() -> list[str]:
    remedy = "install a JDK 17 or 21 (apt-get install openjdk-17-jdk-headless) or set JAVA_HOME to one"
    try:
        version = java_version()
        modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return [f"no Java for Spark: {remedy}"]
    found = re.search(r'version "(\d+)', version)
    if not found or int(found[1]) not in range(17, 22):
        said = next((line for line in version.splitlines() if "version" in line), "a Java that says no version")
        return [f"{said} cannot run Spark 4.1: {remedy}"]
    if "jdk.incubator.vector" not in modules:
        return [f"Java at {java()} lacks the module jdk.incubator.vector: {remedy}"]
    return []


def _root() -> list[str]:
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        return ["setpriv is needed to start PostgreSQL when run as root: apt-get install util-linux"]
    return []


def _ports(ports: Ports) -> list[str]:
    taken = [port for port in ports.all() if not port_is_free(port)]
    if not taken:
        return []
    holders = {}
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.pid:
            holders[connection.laddr.port] = f"{psutil.Process(connection.pid).name()}, pid {connection.pid}"
    return [
        f"port {port} is in use by {holders.get(port, 'another process')}; end it, or give this home other ports with "
        "ANABRANCH_PORT_BASE before its first start"
        for port in taken
    ]
