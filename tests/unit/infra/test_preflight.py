"""What the machine lacks is said, all of it at once, each with how to get it."""

import os
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from infra import preflight as checks
from infra.home import Ports, port_is_free
from infra.preflight import preflight
from runtime.errors import PreflightError

pytestmark = pytest.mark.unit

MODULES = "java.base@17\njdk.incubator.vector@17\n"
JDK = 'openjdk version "17.0.1" 2021-10-19'
REMEDY = r"apt-get install openjdk-17-jdk-headless\) or set JAVA_HOME"


def java_that_says(directory: Path, version: str, modules: str = MODULES) -> None:
    """A Java that says this of itself."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n[ $1 = -version ] && printf '%s' '{version}' >&2 || printf '{modules}'\n")
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has all that is needed, whatever this one has. Returns its JAVA_HOME."""
    monkeypatch.setattr(checks, "MEMORY_GIB", 0)
    monkeypatch.setattr(checks, "DISK_GIB", 0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    java_home = tmp_path / "jdk"
    java_that_says(java_home, JDK)
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    return java_home


@pytest.fixture
def ports() -> Ports:
    bases = range(10_500, 19_000, 1000)
    return Ports(next(base for base in bases if all(port_is_free(port) for port in Ports(base).all())))


def test_a_machine_that_has_everything_passes(tmp_path: Path, ports: Ports) -> None:
    preflight(tmp_path, ports)
    assert list(tmp_path.iterdir()) == [tmp_path / "jdk"]


def test_too_little_memory_is_said_with_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MEMORY_GIB", 100_000)
    with pytest.raises(PreflightError, match=r"\d+\.\d GiB of memory, 100000 GiB are needed"):
        preflight(tmp_path, None)
    monkeypatch.setattr(checks, "MEMORY_GIB", 0)
    monkeypatch.setattr(checks, "FULL_GIB", 100_000.5)
    preflight(tmp_path, None)
    with pytest.raises(PreflightError, match=r"100000\.?5? GiB are needed"):
        preflight(tmp_path, None, "full")


def test_too_little_disk_is_said_of_the_disk_where_the_home_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "DISK_GIB", 1_000_000)
    home = tmp_path / "not" / "yet" / "there"
    with pytest.raises(PreflightError, match=rf"disk of {home}, 1000000 GiB are needed; set ANABRANCH_HOME elsewhere"):
        preflight(home, None)


@pytest.mark.parametrize(
    "version",
    [JDK, 'openjdk version "21" 2023-09-19', f"Picked up JAVA_TOOL_OPTIONS: -Xmx1g\n{JDK}"],
    ids=["17", "21", "17 with options"],
)
def test_a_java_that_runs_spark_passes(machine: Path, tmp_path: Path, version: str) -> None:
    java_that_says(machine, version)
    preflight(tmp_path, None)


@pytest.mark.parametrize(
    ("version", "modules", "problem"),
    [
        ('openjdk version "11.0.2" 2019-01-15', MODULES, '"11.0.2" 2019-01-15 cannot run Spark'),
        ('java version "1.8.0_392"', MODULES, '"1.8.0_392" cannot run Spark'),
        ('openjdk version "25" 2025-09-16', MODULES, '"25" 2025-09-16 cannot run Spark'),
        (JDK, "java.base@17\n", r"lacks the module jdk\.incubator\.vector"),
        (
            'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15',
            MODULES,
            '  - openjdk version "11.0.2" 2019-01-15 cannot run Spark',
        ),
    ],
    ids=["11", "8", "25", "module", "11 with options"],
)
def test_a_java_that_cannot_run_spark_is_said_with_one_that_can(
    machine: Path, tmp_path: Path, version: str, modules: str, problem: str
) -> None:
    java_that_says(machine, version, modules)
    with pytest.raises(PreflightError, match=rf"{problem}(.|\n)*{REMEDY}"):
        preflight(tmp_path, None)


@pytest.mark.parametrize("java_home", ["/nowhere", ""], ids=["JAVA_HOME leads nowhere", "none on PATH"])
def test_no_java_is_said_with_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java_home: str) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match=f"no Java for Spark: .*{REMEDY}"):
        preflight(tmp_path, None)


def test_java_is_looked_for_on_path_where_java_home_is_not_set(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(machine / "bin"))
    preflight(tmp_path, None)


@pytest.mark.parametrize(("user", "fails"), [(0, True), (1000, False)])
def test_only_root_needs_setpriv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, fails: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("PATH", str(tmp_path))
    if not fails:
        preflight(tmp_path, None)
        return
    with pytest.raises(PreflightError, match=r"setpriv .* apt-get install util-linux"):
        preflight(tmp_path, None)


def test_a_port_in_use_is_said_with_who_holds_it_and_the_way_out(tmp_path: Path, ports: Ports) -> None:
    me = psutil.Process()
    with ExitStack() as taken:
        for port in (ports.kafka, ports.postgres):
            taken.enter_context(closing(socket.create_server(("127.0.0.1", port))))
        with pytest.raises(PreflightError, match="ANABRANCH_PORT_BASE") as refused:
            preflight(tmp_path, ports)
    for port in (ports.kafka, ports.postgres):
        assert f"port {port} is in use by {me.name()}, pid {me.pid}" in str(refused.value)
    assert str(refused.value).count("in use") == 2


def test_all_that_is_missing_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: Ports) -> None:
    monkeypatch.setattr(checks, "MEMORY_GIB", 1_000_000)
    monkeypatch.setattr(checks, "DISK_GIB", 1_000_000)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        closing(socket.create_server(("127.0.0.1", ports.trino))),
        pytest.raises(PreflightError, match="this machine is not ready") as refused,
    ):
        preflight(tmp_path, ports)
    assert len(str(refused.value).splitlines()) == 1 + 5
