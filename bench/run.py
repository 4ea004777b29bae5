"""``python -m bench.run [--events N] [--seconds S] [--json]``: freshness and throughput on a platform of its own.

Each figure stands beside a peer that ran in the same run on the same records, because a rate alone says more about the
machine than about the platform. Peers: a plain consumer that only counts (archiver), one that parses and folds the same
groups into a Python dict (speed layer), one that sees a record arrive (freshness), and DuckDB over the same Parquet
files (full build).
"""

import argparse
import itertools
import json
import logging
import os
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import orjson
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.table import Table

from changelog.archive.position import stored_offsets
from changelog.archive.store import s3_client
from changelog.envelope import encode, envelope, timestamp
from changelog.positions import covers
from changelog.producer import ChangelogProducer, Record
from changelog.topics import end_offsets
from infra import platform, supervise
from infra.commands_views import spark_job
from runtime import ops, trino
from runtime.settings import Settings
from serving import publication
from serving.wait import covered, wait

EVENT = "changelog.event"
WARM_SECONDS = 30
"""What the JIT compilers need before an epoch of a few thousand events takes what it takes from then on."""

PROBES_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)

Row = tuple[str, str, str]


def events(number: int, begin: datetime, prefix: str) -> Iterator[Record]:
    """``number`` generated events of 5,000 guests, a millisecond apart."""
    for n in range(number):
        guest = f"guest-{n % 5000}"
        event = {
            "ref": f"{prefix}-{n}",
            "guestRef": guest,
            "type": ("VIEW", "VIEW", "SEARCH", "ADD", "CHECKOUT")[n % 5],
            "channel": ("WEB", "MOBILE", "EMAIL")[n % 3],
            "page": f"/p/{n % 997}",
            "createdAt": timestamp(begin + timedelta(milliseconds=n)),
        }
        yield Record(EVENT, guest.encode(), encode(envelope("bench", f"{prefix}-{n}", event)))


def write_events(settings: Settings, number: int, prefix: str) -> None:
    with ChangelogProducer(settings) as producer:
        for record in events(number, datetime(2020, 1, 1, tzinfo=UTC), prefix):
            producer.send(record)


def timed(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def await_(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.1)


def consume(settings: Settings, use: Callable[[bytes], None]) -> int:
    """Read all events from the beginning with a plain consumer. Returns how many."""
    ends = end_offsets(settings)[EVENT]
    consumer = Consumer({**settings.kafka.client(), "group.id": "bench", "log_level": 3})
    consumer.assign([TopicPartition(EVENT, partition, 0) for partition in ends])
    wanted, read = sum(ends.values()), 0
    while read < wanted:
        for message in consumer.consume(5000, 1.0):
            value = message.value()
            use(value if isinstance(value, bytes) else b"")
            read += 1
    consumer.close()
    return read


def fold_in_python(settings: Settings) -> dict[tuple[str, str, str], int]:
    """The peer of the speed layer: events by minute, type and channel, in a dict."""
    groups: dict[tuple[str, str, str], int] = defaultdict(int)

    def add(value: bytes) -> None:
        current = orjson.loads(value)["current"]
        groups[current["createdAt"][:16], current["type"], current["channel"]] += 1

    consume(settings, add)
    return groups


def freshness(settings: Settings, rate: int, seconds: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds from Kafka's acknowledgement of a probe to its being seen: through Trino, and by a plain consumer; and
    the seconds that micro-batches took meanwhile.

    A probe is an event of a minute of its own among ``rate`` events a second. One is sent, then asked for with pauses
    of 300 ms until an answer shows it, and after a pause of random length the next one: asking all the time would
    measure the asking.
    """
    over = threading.Event()
    consumed: dict[bytes, float] = {}
    epochs: dict[int, float] = {}

    def write() -> None:
        with ChangelogProducer(settings, rate) as producer:
            for record in events(rate * (seconds + 60), datetime.now(UTC), "load"):
                if over.is_set():
                    return
                producer.send(record)

    def watch() -> None:
        ends = end_offsets(settings)[EVENT]
        consumer = Consumer({**settings.kafka.client(), "group.id": "bench-w", "log_level": 3})
        consumer.assign([TopicPartition(EVENT, partition, end) for partition, end in ends.items()])
        while not over.is_set():
            for message in consumer.consume(1000, 0.1):
                key = message.key()
                if isinstance(key, bytes) and key.startswith(b"probe"):
                    consumed[key] = time.monotonic()
        consumer.close()

    threads = [threading.Thread(target=work) for work in (write, watch)]
    for thread in threads:
        thread.start()
    served: list[float] = []
    arrived: list[float] = []
    lake, pause, began = trino.connect(settings), random.Random(1), time.monotonic()
    with ChangelogProducer(settings) as producer:
        for n in itertools.count():
            minute = PROBES_BEGIN + timedelta(minutes=n)
            event = {"ref": f"p{n}", "guestRef": f"probe{n}", "type": "VIEW", "channel": "WEB"}
            made = envelope("probe", f"p{n}", event | {"createdAt": timestamp(minute)})
            producer.send(Record(EVENT, f"probe{n}".encode(), encode(made)))
            producer.flush()
            acknowledged = time.monotonic()
            asked = f"SELECT 1 FROM serving.traffic WHERE minute = TIMESTAMP '{minute:%Y-%m-%d %H:%M} UTC'"
            while not trino.execute(lake, asked)[1]:
                time.sleep(0.3)
            seen = time.monotonic()
            if acknowledged - began > WARM_SECONDS:
                epochs |= last_epoch(settings)
            if acknowledged - began > WARM_SECONDS:
                served.append(seen - acknowledged)
                arrived.append(max(0.0, consumed.get(f"probe{n}".encode(), seen) - acknowledged))
            if seen - began > seconds:
                break
            time.sleep(pause.uniform(0, 2))
    over.set()
    for thread in threads:
        thread.join()
    return served, arrived, list(epochs.values())


def last_epoch(settings: Settings) -> dict[int, float]:
    """The epoch that the speed layer ended last → the seconds that it took."""
    with ops.connect(settings) as connection:
        row = connection.execute("SELECT detail FROM services WHERE name = 'speed'").fetchone()
    return {row["detail"]["epoch"]: row["detail"]["epoch_ms"]["triggerExecution"] / 1000} if row else {}


def build_in_duckdb(settings: Settings) -> float:
    """The peer of a full build: DuckDB, two threads, over the same Parquet files, copied to local disk first."""
    files = trino.execute(trino.connect(settings), 'SELECT file_path FROM archive."event$files"')[1]
    with tempfile.TemporaryDirectory() as directory:
        client = s3_client(settings.s3)
        for n, (path,) in enumerate(files):
            bucket, key = path.removeprefix("s3://").split("/", 1)
            client.download_file(bucket, key, f"{directory}/{n}.parquet")
        connection = duckdb.connect(config={"threads": 2})
        sql = (
            "SELECT date_trunc('minute', current.created_at), current.type, current.channel, count(*) "
            f"FROM read_parquet('{directory}/*.parquet') WHERE kind = 'change' GROUP BY 1, 2, 3"
        )
        return timed(lambda: connection.sql(sql).fetchall())


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(settings: Settings, number: int, seconds: int, say: Callable[[str], None]) -> list[Row]:
    """All figures: (what, platform, peer)."""
    rows: list[Row] = []

    def row(what: str, mine: str, peer: str) -> None:
        say(f"{what}: {mine}; peer: {peer}")
        rows.append((what, mine, peer))

    for name in ("speed", "archiver"):
        supervise.proxy(settings).stopProcess(name, True)
    took = timed(lambda: write_events(settings, number, "first"))
    rate = f"{number / took:,.0f} records/s"
    row(f"write {number:,} events to Kafka", rate, "-")

    counting = number / timed(lambda: consume(settings, lambda _: None))
    ends = end_offsets(settings)
    supervise.start_service(settings, "archiver")
    await_(lambda: platform_state(settings, "archiver") == "running")
    took = timed(lambda: await_(lambda: covers(stored_offsets(settings), ends)))
    row("archiver", f"{number / took:,.0f} records/s", f"{counting:,.0f} (a consumer that only counts)")

    report: dict[str, Any] = {}
    took = timed(lambda: report.update(spark_job("batch.ingest", [], "ingest")))
    inside = f"{number / report['seconds']:,.0f} records/s; {number / took:,.0f} with the start of Spark"
    row("ingest", inside, f"{counting:,.0f} (a consumer that only counts)")

    folding = number / timed(lambda: fold_in_python(settings))
    supervise.start_service(settings, "speed")
    await_(lambda: platform_state(settings, "speed") == "running")
    took = timed(lambda: await_(lambda: covers(covered(settings), ends)))
    row("speed layer, catching up, just started", f"{number / took:,.0f} records/s", f"{folding:,.0f} (a Python dict)")

    run: dict[str, Any] = {}
    took = timed(lambda: run.update(spark_job("batch.run", ["--full"], "batch")))
    duck = build_in_duckdb(settings)
    mine = f"{run['run']['seconds']} s; {took:.1f} s with ingest and the start of Spark"
    row("full build of all views", mine, f"{duck:.2f} s (DuckDB, traffic alone, local files)")
    publication.publish(settings, run["run"]["run_id"])

    served, consumed, epochs = freshness(settings, 2000, seconds)
    peer = f"p50 {statistics.median(consumed):.2f} s, p99 {quantile(consumed, 0.99):.2f} s (a plain consumer)"
    mine = f"p50 {statistics.median(served):.2f} s, p99 {quantile(served, 0.99):.2f} s of {len(served)} probes"
    row("freshness at 2,000 events/s, acknowledged → seen through Trino", mine, peer)

    mine = f"p50 {statistics.median(epochs):.2f} s, p95 {quantile(epochs, 0.95):.2f} s of {len(epochs)}"
    row("micro-batch with all views meanwhile", mine, "-")

    took = timed(lambda: write_events(settings, number, "second")) + timed(lambda: wait(settings))
    what = f"{number:,} events more, first written → all seen, running for minutes"
    row(what, f"{number / took:,.0f} records/s", f"{folding:,.0f} (a Python dict)")
    return rows


def platform_state(settings: Settings, name: str) -> str:
    """What a service said of itself in the last seconds."""
    with ops.connect(settings) as connection:
        found = connection.execute(
            "SELECT state FROM services WHERE name = %s AND pid = %s AND updated_at > now() - interval '10 s'",
            (name, supervise.states(settings)[name]["pid"]),
        ).fetchone()
    return found["state"] if found else ""


def main() -> None:
    """Measure on a fresh platform in a temporary home, and end it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=500_000, help="for the throughput figures")
    parser.add_argument("--seconds", type=int, default=150, help="how long freshness is measured")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as directory:
        os.environ["ANABRANCH_HOME"] = str(Path(directory) / "home")
        os.environ["ANABRANCH_ARCHIVER__MAX_AGE_SECONDS"] = "1"  # or its rate would be that of waiting for age
        try:
            settings = platform.up(console.print)
            rows = measure(settings, arguments.events, arguments.seconds, console.print)
        finally:
            platform.down(console.print)
    if arguments.json:
        print(json.dumps([dict(zip(("what", "platform", "peer"), row, strict=True)) for row in rows]))
        return
    table = Table("what", "platform", "peer")
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
