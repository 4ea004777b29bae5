"""An engine, images, and installations in containers of the tests' own."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.artifacts.install import install
from infra.compose import ArchiverChoice, ComposeProfile, init
from runtime.settings import Settings, read
from runtime.version import ROOT
from tests.compose.engine import docker, engine
from tests.compose.images import build_all
from tests.services import until

QUICK = {
    "archiver": {"max_age_seconds": 2},
    "speed": {"trigger_seconds": 1, "driver_memory": "768m"},
    "batch": {
        "schedule": "",
        "maintenance_schedule": "",
        "driver_memory": "1g",
        "idle_seconds": 15,
        "retry_seconds": 1,
    },
    "watch": {"schedule": ""},
    "drift": {"schedule": ""},
    "airflow": {"cleanup_schedule": ""},
    "trino": {"java_options": "-XX:TieredStopAtLevel=1"},
    "spark": {"java_options": "-XX:TieredStopAtLevel=1"},
}
"""Settings for tests: nobody wants to wait, and the machine is small."""


UP_SECONDS = 900

FIGURES = Path("test-results") / "compose.jsonl"
"""A line for each installation when it is removed: how long its first start took, and what each container has taken."""


class Installation:
    """A directory that ``anabranch init`` wrote, and the containers that Compose makes of it."""

    def __init__(self, directory: Path, images: dict[str, str], profiles: tuple[ComposeProfile, ...]) -> None:
        self.directory = directory
        self.project = f"anabranch-test-{os.getpid()}-{'-'.join(profiles)}"
        self._environment = {**os.environ, **images, "HEALTH_INTERVAL": "5s"}
        self._profiles = profiles
        self.up_seconds: float | None = None
        self.init("anabranch")
        settings = json.loads((directory / "config" / "settings.json").read_text())
        for section, values in QUICK.items():
            settings.setdefault(section, {}).update(values)
        (directory / "config" / "settings.json").write_text(json.dumps(settings))
        self.init()

    def init(self, archiver: ArchiverChoice | None = None) -> None:
        init(self.directory / "config", self.directory / "env", self._profiles, archiver)

    @property
    def settings(self) -> Settings:
        return read(self.directory / "config" / "settings.json")

    def compose(self, *words: str, check: bool = True, seconds: float = 900, stdin: bytes | None = None) -> str:
        """``docker compose …`` for this installation. Returns standard output, raises with both outputs."""
        where = ["--project-directory", str(ROOT), "-f", str(ROOT / "docker-compose.yml"), "-p", self.project]
        done = subprocess.run(
            ["docker", "compose", *where, "--env-file", str(self.directory / "env"), *words],
            capture_output=True, check=False, timeout=seconds, env=self._environment, input=stdin,
        )  # fmt: skip
        said = done.stdout.decode(errors="replace")
        if check and done.returncode:
            errors = done.stderr.decode(errors="replace")[-6000:]
            raise AssertionError(f"docker compose {' '.join(words)}: {done.returncode}\n{said}\n{errors}")
        return said

    def up(self) -> None:
        """Not by ``--wait-timeout``: when that is over Compose says that all is well."""
        began = time.monotonic()
        try:
            self.compose("up", "--wait", "--no-build", seconds=UP_SECONDS)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"{error}\n{self.report()}") from error
        assert self.unwell() == [], self.report()
        self.up_seconds = self.up_seconds or round(time.monotonic() - began, 1)

    def report(self) -> str:
        """What is not well, and what it wrote last."""
        bad = self.unwell()
        logs = [self.compose("logs", "--no-log-prefix", "--tail", "25", one["Service"], check=False) for one in bad]
        return "\n".join(
            f"--- {one['Service']} {one['State']} {one['Health']} {one['ExitCode']}\n{log}"
            for one, log in zip(bad, logs, strict=True)
        )

    def unwell(self) -> list[dict[str, Any]]:
        """The containers that are neither healthy nor have done what they were for."""
        return [
            one for one in self.containers()
            if one["Health"] != "healthy" and (one["State"], one["ExitCode"]) != ("exited", 0)
        ]  # fmt: skip

    def containers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.compose("ps", "-a", "--format", "json", check=False).splitlines()]

    def anabranch(self, *words: str, check: bool = True, stdin: bytes | None = None) -> str:
        """A command of the command line, in its container."""
        return self.compose("exec", "-T", "cli", "anabranch", *words, check=check, stdin=stdin)

    def query(self, sql: str) -> list[list[Any]]:
        return [list(row.values()) for row in json.loads(self.anabranch("query", "--format", "json", sql))]

    def inspect(self, service: str) -> dict[str, Any]:
        (found, *_) = json.loads(docker("inspect", self.compose("ps", "-a", "-q", service).split()[0]))
        return dict(found)

    def crash(self, service: str) -> None:
        """SIGKILL to everything in a container, as the kernel would. The engine starts it again: wait until it is
        healthy."""
        before = self.inspect(service)
        os.kill(before["State"]["Pid"], signal.SIGKILL)

        def is_back() -> bool:
            state = json.loads(docker("inspect", "-f", "{{json .State}}", before["Id"]))
            return bool(state["StartedAt"] != before["State"]["StartedAt"] and state["Health"]["Status"] == "healthy")

        until(is_back, 300, f"{service} is healthy again")

    def simulate(self, records: int, seed: int, rate: int = 0) -> int:
        """Write records, some of them twice; returns how many were acknowledged."""
        options = {"records": records, "rate": rate, "seed": seed, "duplicates": 0.02}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return int(json.loads(self.anabranch("simulate", *words, "--json"))["acknowledged"])

    def logged(self) -> int:
        """How many records the log holds, where none were written in transactions."""
        ask = "from changelog.topics import end_offsets; from runtime.settings import Settings; "
        ask += "print(sum(end for ends in end_offsets(Settings()).values() for end in ends.values()))"
        return int(self.compose("exec", "-T", "cli", "python", "-c", ask))

    def let_go(self) -> None:
        """Let Kafka's retention pass everything that there is."""
        code = "from confluent_kafka import TopicPartition; from changelog.topics import admin, end_offsets; "
        code += "from runtime.settings import Settings; settings = Settings(); client = admin(settings); "
        code += "ends = [TopicPartition(t, p, o) for t, s in end_offsets(settings).items() for p, o in s.items()]; "
        code += "[future.result(30) for future in client.delete_records(ends).values()]"
        self.compose("exec", "-T", "cli", "python", "-c", code)

    def assert_exact(self) -> None:
        """Archive and every merged view are the fold of the log."""
        assert json.loads(self.anabranch("verify", "--json"))["differences"] == []

    def memory(self) -> dict[str, str]:
        """What each running container takes now, and may take."""
        running = self.compose("ps", "-q", check=False).split()
        stats = docker("stats", "--no-stream", "--format", "{{json .}}", *running) if running else ""
        found = [json.loads(line) for line in stats.splitlines()]
        return {one["Name"].removeprefix(f"{self.project}-"): one["MemUsage"] for one in found}

    def down(self) -> None:
        if self.containers():
            line = {"profiles": self._profiles, "up_seconds": self.up_seconds, "memory": self.memory()}
            FIGURES.parent.mkdir(exist_ok=True)
            with FIGURES.open("a") as file:
                file.write(json.dumps(line) + "\n")
        self.compose("down", "-v", "--remove-orphans", "--timeout", "5", check=False)


@pytest.fixture(scope="session")
def images() -> Iterator[dict[str, str]]:
    with engine():
        removed()
        yield build_all(install(print))


def removed() -> None:
    """What runs before this that were killed have left; the engine has started it again."""
    ours = ["--filter", "label=com.docker.compose.project", "--filter", "name=anabranch-test-"]
    if left := docker("ps", "-aq", *ours).split():
        docker("rm", "-fv", *left)
    for kind in ("network", "volume"):
        if left := docker(kind, "ls", "-q", *ours).split():
            docker(kind, "rm", *left)


@pytest.fixture(scope="session")
def installed(images: dict[str, str]) -> Iterator[Callable[..., Installation]]:
    """``installed(profiles…)`` prepares an installation; all of them are removed at the end. One at a time runs."""
    made: list[Installation] = []
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-compose-"))

    def call(*profiles: ComposeProfile) -> Installation:
        for other in made:
            other.down()
        directory = scratch / "-".join(profiles)
        directory.mkdir()
        made.append(Installation(directory, images, profiles))
        return made[-1]

    yield call
    for one in made:
        one.down()
    shutil.rmtree(scratch)
