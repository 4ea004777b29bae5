"""What a case of the catalogue is given: the platform, a journalled load, ways to break things, and what is asked
afterwards."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from batch.plan import Plan
from batch.run import wait_for_archiver
from changelog.topics import acknowledged_offsets, committed_offsets, end_offsets
from infra import supervise
from infra.readiness import await_ready
from runtime.errors import AnabranchError, TransientError
from runtime.settings import Settings
from serving.wait import wait
from tests.faults.journal import JournalledWriter, Made, shop_prefixes, shop_records
from tests.faults.places import Checked, Checker, Tolerated
from tests.faults.prober import QUERIES, Prober
from tests.faults.report import Report, kill
from tests.services import ROOT, batch, query, start, until

SERVICES = ("postgres", "kafka", "minio", "trino", "archiver", "derive", "speed", "commands")
OURS = ("archiver", "derive", "speed", "commands")
READY_SECONDS = 180
MOST = 10_000_000
"""Records of a load, more than any has time for."""


@dataclass
class Load:
    """A writer at work: a process with a journal."""

    process: "subprocess.Popen[str]"

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def finish(self) -> dict[str, int]:
        """Let the writer send no more, and wait until all is acknowledged: what it counted."""
        self.process.terminate()
        out, err = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, f"the writer failed: {self.process.returncode}: {err[-2000:]}"
        found: dict[str, int] = json.loads(out)
        return found


class Scene:
    """One case on the platform that all cases share. ``spark`` makes the tests' own session when it is first asked
    for; ``turn``, 0 to 8, makes another case of the same, with other records and other moments. Where the
    log is not ``quiet``, because others write to it too, nothing is compared while the case runs."""

    def __init__(
        self,
        settings: Settings,
        seed: int,
        report: Report,
        checker: Checker,
        lake: Callable[[], SparkSession],
        turn: int = 0,
        quiet: bool = True,
    ) -> None:
        self.settings, self.seed, self.report, self.checker = settings, seed, report, checker
        self.turn, self.quiet = turn, quiet
        self.random = random.Random(seed * 10 + turn)
        self._lake = lake
        self._numbers = 0
        self._spawned: dict[subprocess.Popen[str], Path] = {}

    @property
    def spark(self) -> SparkSession:
        return self._lake()

    def fresh(self) -> tuple[int, Path]:
        """A seed and a file of the journal that nobody had before. A seed makes keys: six digits, so that none is the
        beginning of another."""
        self._numbers += 1
        assert self._numbers < 10, "a case has nine loads at most"
        seed = 100_000 * (1 + self.turn) + self.seed * 10 + self._numbers
        return seed, self.checker.journal / f"{seed}.jsonl"

    # --- load

    def feed(self, records: int) -> None:
        """Write a shop's records and wait until they are acknowledged."""
        seed, path = self.fresh()
        self.write(shop_records(seed, records), shop_prefixes(seed), path)

    def write(self, made: Iterable[Made], prefixes: Iterable[str], path: Path | None = None) -> None:
        """Write records and wait until they are acknowledged."""
        with JournalledWriter(self.settings, path or self.fresh()[1], prefixes) as writer:
            for one in made:
                writer.send(one)
        assert writer.failed == 0, f"Kafka did not take {writer.failed} records"

    @contextmanager
    def load(self, rate: float) -> Iterator[Load]:
        """A process that writes meanwhile, ``rate`` records a second, for as long as the case does something;
        afterwards everything that it has sent is acknowledged, unless it was killed."""
        seed, path = self.fresh()
        arguments = [str(path), "--seed", str(seed), "--records", str(MOST), "--rate", str(rate)]
        load = Load(start(*arguments, module="tests.faults.journal"))
        try:
            until(lambda: path.exists() or load.is_over(), 30, "the writer writes")
            yield load
            if load.process.poll() != -signal.SIGKILL:
                assert not load.is_over(), "the writer has ended before it was told to"
                load.finish()
        finally:
            if load.process.poll() is None:
                load.process.kill()
            if load.process.stdout and not load.process.stdout.closed:
                load.process.communicate()

    # --- faults

    def pid(self, name: str) -> int | None:
        """The process of a service, or None while it does not run."""
        found = supervise.states(self.settings).get(name, {}).get("pid")
        return int(found) if found else None

    def kill_at_work(self, name: str, at_most: float) -> None:
        """SIGKILL a service ``at_most`` seconds after it has begun to work."""
        await_ready(self.settings, name, READY_SECONDS)
        self.somewhen(at_most)
        self.kill(name)

    def kill(self, name: str, then: bool = True) -> None:
        """SIGKILL the process of a service; with ``then`` wait until the supervisor has started it again."""
        until(lambda: self.pid(name) is not None, 60, f"{name} runs")
        old = self.pid(name)
        kill(old)
        if then:
            until(lambda: self.pid(name) not in (None, old), 60, f"{name} is started again")

    def stop(self, *names: str) -> None:
        """Stop services, as an operator does."""
        supervise.stop_services(self.settings, list(names))

    def go_on(self, *names: str) -> None:
        """Start services and wait until they answer."""
        for name in names:
            supervise.start_service(self.settings, name)
        self.report.acted()
        for name in names:
            await_ready(self.settings, name, READY_SECONDS)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """A service that does nothing and is there (SIGSTOP), and goes on afterwards (SIGCONT), children too."""
        pid = self.pid(name)
        assert pid is not None
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in family:
            process.suspend()
        self.report.told(f"{name} was stopped by SIGSTOP")
        try:
            yield
        finally:
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
            self.report.acted()

    def pause(self, seconds: float) -> None:
        """Let the fault last. How long something is away is what is tested, so nothing is awaited."""
        threading.Event().wait(seconds)

    def somewhen(self, at_most: float) -> None:
        """Wait until a random moment."""
        self.pause(self.random.uniform(0, at_most))

    def run_until_killed(self, module: str, point: str, *arguments: str) -> None:
        """Run a program in the foreground until it dies at a named point; a point is passed once in a home, unless the
        marker of an earlier case is taken away."""
        (self.settings.home / f"killed-at-{point}").unlink(missing_ok=True)
        process = start(*arguments, module=module, ANABRANCH_KILL_AT=point)
        out, err = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, (
            f"it should have died at {point}: {process.returncode}\n{out[-500:]}\n{err[-3000:]}"
        )
        self.report.kills += 1
        self.report.acted()

    # --- what is asked

    def batch(self, plan: Plan | None = None, serve: bool = True) -> None:
        """Ingest, build and publish; again where it is told that it is too early, as the schedule does."""

        def ran() -> bool:
            try:
                batch(self.spark, self.settings, plan, serve)
            except TransientError:
                return False
            return True

        until(ran, 150, "a batch run comes through")

    def covered(self, seconds: float = 240) -> None:
        """Wait until every service answers and every view covers everything acknowledged, and time it; then until the
        archiver has stored it."""
        for name in SERVICES:
            await_ready(self.settings, name, READY_SECONDS)
        wait(self.settings, timeout_seconds=seconds)
        self.report.recovered()
        assert wait_for_archiver(self.settings, end_offsets(self.settings), 120), "the archiver has not caught up"

    def check(self, tolerated: Tolerated = frozenset()) -> Checked:
        """Everything is covered, and every place has every record, once, unaltered."""
        self.covered()
        if not self.quiet:
            return Checked([], 0, 0)
        checked = self.checker.check(tolerated)
        self.report.records, self.report.bad = checked.records, checked.kinds.get("bad", 0)
        self.report.lost, self.report.doubled = checked.count("lost"), checked.count("doubled")
        self.report.altered = checked.count("altered") + checked.count("extra")
        for where, what in sorted({one[:2] for one in checked.tolerated}):
            number = sum(1 for one in checked.tolerated if one[:2] == (where, what))
            self.report.told(f"{number} {what} in {where}, as the fault meant")
        assert checked.findings == [], str(checked)
        return checked

    def acknowledged_events(self) -> int | None:
        """How many offsets Kafka has acknowledged in the log of events; None while it does not answer."""
        try:
            ends = acknowledged_offsets(self.settings, ["changelog.event"])
        except AnabranchError:
            return None
        return sum(ends["changelog.event"].values())

    def events_at_most(self) -> Callable[[], int]:
        """How many events there can be at a time: those that the views have now, if they have all, and what Kafka has
        acknowledged since; where the views lag, what it has acknowledged in all. No limit while it does not answer."""
        begun = self.acknowledged_events() or 0
        try:
            wait(self.settings, timeout_seconds=20 if self.quiet else 0)
            more = begun - int(query(self.settings, QUERIES["traffic"])[0][0])
        except AnabranchError:
            more = 0

        def at_most() -> int:
            now = self.acknowledged_events()
            return sys.maxsize if now is None else now - more

        return at_most

    @contextmanager
    def probed(self, may_refuse: bool = False) -> Iterator[Prober]:
        """A reader asks all the time. No answer may be false; none may be refused, unless ``may_refuse`` says that
        what answers is away."""
        with Prober(self.settings, self.events_at_most()) as prober:
            yield prober
        self.report.queries += len(prober.answers)
        self.report.refused_queries += len(prober.refused)
        assert prober.lived, "the reader did not ask to the end"
        assert prober.lies == []
        assert any(answer.number is not None for answer in prober.answers), "no query was answered at all"
        if not may_refuse:
            assert [answer.error for answer in prober.refused] == [], "a query was refused"

    def archiver_position(self) -> int:
        """How many offsets the archiver has committed, in all."""
        group = self.settings.archiver.group
        vector = committed_offsets(self.settings, group, self.settings.topics)
        return sum(offset for parts in vector.values() for offset in parts.values())

    def newest_generation(self) -> int:
        """The newest generation of the speed layer that has an epoch."""
        return int(query(self.settings, "SELECT max(generation) FROM ops.epochs")[0][0])

    def checkpoint(self) -> Path:
        """Where the newest generation keeps its checkpoint."""
        numbers = (self.settings.home / "checkpoints" / "main").glob("[0-9]*")
        return max(numbers, key=lambda path: int(path.name))

    def spawn(self, *arguments: str, module: str = "infra.cli", **environment: str) -> "subprocess.Popen[str]":
        """Start a command in a process group of its own. What it says goes to a file among the home's logs: nobody
        reads it while the command runs, and a pipe would be full."""
        log = self.settings.home / "logs" / f"{self.report.name}-{self.turn}-{len(self._spawned) + 1}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT, env={**os.environ, **environment}, text=True, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._spawned[process] = log
        return process

    def said(self, process: "subprocess.Popen[str]") -> str:
        """What a command that was spawned has said so far."""
        return self._spawned[process].read_text()

    def close(self) -> None:
        """End what a case that failed has left of what it spawned, and start what it has left stopped. A second call
        does nothing."""
        for process in self._spawned:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for name in SERVICES:
            supervise.start_service(self.settings, name)


def finish(processes: Sequence["subprocess.Popen[str]"], seconds: float = 400) -> list[int]:
    """Wait until processes have ended: their exit statuses."""
    return [process.wait(seconds) for process in processes]
