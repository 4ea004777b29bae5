"""``python -m tests.faults.soak --minutes M [--seed N] [--rate R] [--json FILE]``: faults upon faults, for as long as
you like.

A shop writes all the time, with a journal; cases of the catalogue follow each other in an order that the seed decides,
with batch runs and maintenance between them. At the end everything is verified, and the checker compares every record
with every place. Exit status 1 on any difference, or if a case did not end as it should. Meanwhile it is noted what
grows: memory by service, files and snapshots of the lake, state on disk.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from infra import platform, supervise
from runtime import trino
from runtime.errors import AnabranchError
from runtime.settings import Settings
from runtime.spark import session
from serving.wait import wait
from tests.faults import report
from tests.faults.catalogue import Fault, catalogue
from tests.faults.disk import used
from tests.faults.places import Checker
from tests.faults.scene import SERVICES, Scene
from tests.services import SHORT_LIVED, run, start

SAMPLE_SECONDS = 20.0
LOAD_SEED = 9_002
"""Of no case of the catalogue."""

TURNS = 9
GROWING = ("checkpoints", "identities", "histories", "data/minio", "data/kafka", "data/postgres", "logs")
FASTER = {
    "ANABRANCH_BATCH__SCHEDULE": "", "ANABRANCH_ARCHIVER__MAX_AGE_SECONDS": "5", "ANABRANCH_SPEED__BUCKET_EPOCHS": "16",
    "ANABRANCH_SPEED__TRIGGER_SECONDS": "5", "ANABRANCH_BATCH__KEEP_PUBLICATIONS": "3",
    **{f"ANABRANCH_{program}__JAVA_OPTIONS": SHORT_LIVED for program in ("SPARK", "TRINO")},
}  # fmt: skip
"""What is shorter than it is by default, so that an hour has many epochs, objects, buckets and publications in it, and
still leaves two cores time for what is killed to start again."""

TABLES = 'SELECT (SELECT count(*) FROM {0}$files"), (SELECT count(*) FROM {0}$snapshots")'


def memory(settings: Settings) -> dict[str, int]:
    """Resident memory of each service with everything that it started, in MiB."""
    found: Counter[str] = Counter()
    for process in supervise.leftovers(settings):
        try:
            name = process.environ().get("ANABRANCH_SERVICE", "?")
            found[name] += process.memory_info().rss
        except psutil.Error:
            continue
    return {name: found[name] >> 20 for name in SERVICES}


def lake(settings: Settings) -> dict[str, int]:
    """Files and snapshots of the speed table and of an archive table; nothing of what cannot be asked now."""
    found: dict[str, int] = {}
    for name, table in {"speed": 'lake.speed."main', "archive": 'lake.archive."event'}.items():
        try:
            _, rows = trino.execute(trino.connect(settings), TABLES.format(table))
        except AnabranchError:
            continue
        found[f"{name}_files"], found[f"{name}_snapshots"] = rows[0]
    return found


class Sampler:
    """Notes every ``SAMPLE_SECONDS`` what there is, until it is told to stop."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._over = settings, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self.samples.append(self.sample())
            self._over.wait(SAMPLE_SECONDS)

    def sample(self) -> dict[str, Any]:
        home = self._settings.home
        return {
            "seconds": round(time.monotonic() - self._began),
            "memory_mib": memory(self._settings),
            "lake": lake(self._settings),
            "disk_mib": {name: used(home / name) >> 20 for name in GROWING if (home / name).exists()},
        }

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)


def growth(samples: list[dict[str, Any]]) -> list[tuple[str, str, float, float, float]]:
    """(what, of what, after a fifth of the time, at the end, highest) of everything that was noted."""
    found = []
    for kind in ("memory_mib", "lake", "disk_mib"):
        for name in samples[-1][kind]:
            values = [one[kind][name] for one in samples if one[kind].get(name)]
            if values:
                found.append((kind, name, values[len(values) // 5], values[-1], max(values)))
    return found


class Soak:
    """One run. ``results``: what became of every case and every step between."""

    def __init__(self, settings: Settings, seed: int, rate: float, journal: Path, say: Any) -> None:
        self.settings, self.rate, self._say = settings, rate, say
        self._random = random.Random(seed)
        self.checker = Checker(settings, journal)
        self.results: list[dict[str, Any]] = []
        self._turns: Counter[str] = Counter()
        self._spark: SparkSession | None = None

    def spark(self) -> SparkSession:
        """The soak's own session, made when a case first asks for it."""
        if self._spark is None:
            conf = {"spark.sql.shuffle.partitions": "2"}
            self._spark = session(self.settings, "soak", "2g", conf)
        return self._spark

    def chosen(self) -> Fault | None:
        """The next case; None where all have had their turns."""
        left = [one for one in catalogue().values() if not one.alone and self._turns[one.name] < TURNS - 1]
        return self._random.choice(left) if left else None

    def step(self, case: Fault) -> None:
        """Run one case under the load; a failure is noted, and the run goes on."""
        turn = self._turns[case.name]
        self._turns[case.name] += 1
        line = report.begin(report.Report(case.name, case.what, case.seed))
        scene = Scene(self.settings, case.seed, line, self.checker, self.spark, turn, quiet=False)
        self._say(f"{case.name}: {case.what}")
        began, error = time.monotonic(), ""
        try:
            with scene.probed(case.refusable):
                case.steps(scene)
        except Exception as failure:  # whatever a case raises; it is told, and is the exit status
            error = f"{type(failure).__name__}: {str(failure)[:400]}"
        finally:
            scene.close()
            report.end()
        self._note(case.name, began, error, kills=line.kills, queries=line.queries, refused=line.refused_queries)
        if error:
            run("up")  # what the case left undone

    def upkeep(self) -> None:
        """A batch run and maintenance, as the schedule does."""
        for command in ("batch", "maintenance"):
            began, error = time.monotonic(), ""
            try:
                run(command)
            except AssertionError as failure:
                error = str(failure)[-400:]
            self._note(command, began, error)

    def _note(self, name: str, began: float, error: str, **more: Any) -> None:
        self.results.append({"name": name, "seconds": round(time.monotonic() - began, 1), "error": error, **more})
        self._say(self.results[-1])

    def work(self, minutes: float) -> None:
        """Load, faults and upkeep for so long; then everything is there and covered."""
        line = report.Report("soak", "")
        scene = Scene(self.settings, LOAD_SEED, line, self.checker, self.spark, quiet=False)
        deadline = time.monotonic() + 60 * minutes
        with scene.load(self.rate):
            number = 0
            while time.monotonic() < deadline and (case := self.chosen()) is not None:
                self.step(case)
                number += 1
                if number % 3 == 0:
                    self.upkeep()
        wait(self.settings, timeout_seconds=600)

    def judge(self) -> dict[str, Any]:
        """Everything folded anew, verified, and compared record by record."""
        run("batch")
        line = report.Report("soak", "")
        scene = Scene(self.settings, LOAD_SEED, line, self.checker, self.spark, quiet=False)
        scene.covered(600)
        checked = self.checker.check(frozenset({("raw", "doubled")}))
        verifying = start("verify", "--json")
        verified = json.loads(verifying.communicate(timeout=900)[0])  # its exit status says what its differences say
        return {
            "records": checked.records, "kinds": checked.kinds, "findings": [str(one) for one in checked.findings[:20]],
            **{what: checked.count(what) for what in ("lost", "doubled", "altered", "extra")},
            "stored_twice_in_raw": len(checked.tolerated), "verify": verified["differences"],
        }  # fmt: skip


def show(console: Console, result: dict[str, Any]) -> None:
    """The figures for people."""
    cases = Table("case", "seconds", "kills", "queries", "refused", "error")
    for one in result["results"]:
        cases.add_row(*(str(one.get(name, "")) for name in ("name", "seconds", "kills", "queries", "refused", "error")))
    grown = Table("what", "of", "after a fifth", "at the end", "highest")
    for row in result["growth"]:
        grown.add_row(*map(str, row))
    console.print(cases, grown)
    console.print(result["judged"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=25)
    parser.add_argument("--json", type=Path, default=Path("test-results") / "soak.json")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what ends it as Ctrl-C does, with all that it started
    console = Console(stderr=True)
    scratch = Path(tempfile.mkdtemp(prefix="anabranch-soak-"))
    for name in [name for name in os.environ if name.startswith("ANABRANCH_") and name != "ANABRANCH_CACHE"]:
        del os.environ[name]
    os.environ |= {"ANABRANCH_HOME": str(scratch / "home"), **FASTER}
    result: dict[str, Any] = {"seed": arguments.seed, "minutes": arguments.minutes, "rate": arguments.rate}
    (scratch / "journal").mkdir()
    try:
        settings = platform.up(console.print)
        soak = Soak(settings, arguments.seed, arguments.rate, scratch / "journal", console.print)
        sampler = Sampler(settings)
        try:
            soak.work(arguments.minutes)
            result["judged"] = soak.judge()
        finally:
            sampler.stop()
            result |= {"results": soak.results, "samples": sampler.samples, "growth": growth(sampler.samples)}
            result["kills"] = sum(one.get("kills", 0) for one in soak.results)
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(json.dumps(result, indent=1, default=str) + "\n")
    finally:
        platform.down(console.print)
    show(Console(), result)
    judged = result["judged"]
    wrong = judged["findings"] or judged["verify"] or [one for one in soak.results if one["error"]]
    if wrong:
        console.print(f"[bold]not exact, or not as it should be[/]; the platform's files stay in {scratch}")
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
