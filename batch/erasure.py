"""An erasure, step by step: from the request to the proof. Each step can be killed and run again with the same result.

    requested   hidden from what is served; the speed layer begins a generation without the guest
    published   everything that is served is folded without the guest
    rewritten   archive, snapshots, and state hold nothing of the guest any more
    waiting     Kafka still has records: until its retention has passed them
    done        a search of every store found nothing, and who it was is forgotten

What is left of it for ever: its number, the keyed hash of the ref, when it was asked for and done, and counts.
"""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg import sql

from batch.backup import backup
from batch.search import Found, InTopic, Wanted, databases, files, search
from changelog.archive.position import stored_offsets
from changelog.commands.schema import COMMANDS, OUTCOMES, command_topic
from changelog.commands.service import GROUP as COMMANDS_GROUP
from changelog.derive import SOURCES
from changelog.derived import BOUNDED, DERIVED, GROUP, latest_topic
from changelog.erased import digest
from changelog.erasures import secret_of, served_number
from changelog.positions import Vector, covers, from_json
from changelog.sources.cdc import stream
from changelog.sources.cdc.mapper import BAD_TOPIC, Mark
from changelog.topics import TIMEOUT, admin, committed_offsets
from runtime import faults, ops
from runtime.errors import ConflictError, TerminalError, TransientError
from runtime.ops import Connection
from runtime.settings import Database, Settings

log = logging.getLogger("erasure")

T = TypeVar("T")

STATES = ("requested", "published", "rewritten", "waiting", "done")

PURGED = ("changelog.", "patch.", "command.", "cdc.")
"""Topics that may be cut off early: what lies before their readers' positions is archived, or of no use any more. Not
``command.outcomes`` and ``alert.*``: what they hold of others tells that something was done already."""


@dataclass
class Waiting:
    """What Kafka still has of a guest: ``last`` offset in a topic-partition, and when it is gone at the latest. In a
    ``compacted`` one it has to go on as well: Kafka closes a segment only as something is written."""

    topic: str
    partition: int
    last: int
    gone_at: datetime
    compacted: bool = False

    def __str__(self) -> str:
        when = f"{self.gone_at:%Y-%m-%d %H:%M} UTC"
        said = f"{self.topic}/{self.partition} up to offset {self.last}, gone by {when}"
        return f"{said}, if something more is written to this partition before" if self.compacted else said


@dataclass
class Proof:
    """What a search found: ``stores``, one after another, and of Kafka what is waited for. ``remarks``: what it did not
    look for, and why."""

    stores: list[Found] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def found(self) -> list[Found]:
        """Stores in which something is."""
        return [store for store in self.stores if store.number]

    @property
    def elsewhere(self) -> list[Found]:
        """The same without Kafka, where only time helps."""
        return [store for store in self.found if not isinstance(store, InTopic)]

    def to_json(self) -> dict[str, Any]:
        return {"stores": [store.to_json() for store in self.stores], "waiting": [str(one) for one in self.waiting],
                "remarks": self.remarks}  # fmt: skip


def row_of(connection: Connection, erasure: int) -> dict[str, Any]:
    """A row of ``erasures``. Raises TerminalError if there is none."""
    row = connection.execute("SELECT * FROM erasures WHERE erasure = %s", (erasure,)).fetchone()
    if row is None:
        raise TerminalError(f"there is no erasure {erasure}: anabranch erasures")
    return row


def number_of(settings: Settings, ref: str) -> int | None:
    """The number of the erasure of a ref; None if there is none."""
    with ops.connect(settings) as connection:
        row = connection.execute(
            "SELECT erasure FROM erasures WHERE digest = %s", (digest(secret_of(settings), ref.encode()),)
        ).fetchone()
    return None if row is None else int(row["erasure"])


def list_all(settings: Settings) -> list[dict[str, Any]]:
    """All erasures, oldest first, without what tells who it is."""
    with ops.connect(settings) as connection:
        return connection.execute(
            "SELECT erasure, encode(digest, 'hex') AS digest, state, requested_at, derived_at, finished_at, log_end, "
            "records, left_out, steps, found FROM erasures ORDER BY erasure"
        ).fetchall()


def advance(connection: Connection, erasure: int, state: str) -> None:
    """Note that a step is done. One that was done before stays as it was noted."""
    before = STATES[: STATES.index(state)]
    connection.execute(
        "UPDATE erasures SET state = %(state)s, steps = steps || jsonb_build_object(%(state)s::text, now()) "
        "WHERE erasure = %(erasure)s AND state = ANY(%(before)s)",
        {"state": state, "erasure": erasure, "before": list(before)},
    )


def is_generation_ready(settings: Settings, erasure: int) -> bool:
    """Whether the speed layer has come to the point where a batch run can switch to a generation without the guest."""
    with ops.connect(settings) as connection:
        beat = connection.execute("SELECT detail FROM services WHERE name = 'speed'").fetchone()
        detail = beat["detail"] if beat else {}
        row = connection.execute(
            "SELECT warm_vector FROM generations WHERE pipeline = %s AND generation = %s AND erasures >= %s",
            (detail.get("pipeline"), detail.get("generation"), erasure),
        ).fetchone()
    return row is not None and "end" in detail and covers(from_json(detail["end"]), from_json(row["warm_vector"]))


def is_published(settings: Settings, erasure: int) -> bool:
    """Whether everything that is served has taken an erasure in; notes it."""
    with ops.connect(settings) as connection:
        if served_number(connection) < erasure:
            return False
        advance(connection, erasure, "published")
    return True


def ensure_published(settings: Settings, erasure: int, publish: Callable[[], T]) -> T | None:
    """Publish, unless everything that is served has taken the erasure in already: somebody may have published a later
    generation first, also at this moment, and then there is nothing left to publish. Returns what ``publish`` did, if
    it did; raises what it raises, and TransientError where the guest is still counted afterwards."""
    if is_published(settings, erasure):
        return None
    try:
        done = publish()
    except TerminalError:
        if is_published(settings, erasure):
            return None
        raise
    if not is_published(settings, erasure):
        raise TransientError(f"erasure {erasure}: what is served still counts the guest: anabranch boundary")
    return done


def clean(settings: Settings, erasure: int) -> None:
    """What is neither log nor lake: rows of the operations database and of Airflow's, logs of the services, backups. To
    be called once ``erase`` has rewritten the archive; a second call finds nothing left."""
    with ops.connect(settings) as connection:
        row = row_of(connection, erasure)
        if row["ref"] is None:
            return
        connection.execute("DELETE FROM dead_letter_replays WHERE key = %s", (row["ref"].encode(),))
        connection.execute("VACUUM (ANALYZE) dead_letter_replays")
        _tidy(settings, _wanted(row))
        _bound_compaction(settings)
        backup(settings, keep=1)  # the ones before have rows of the guest
        advance(connection, erasure, "rewritten")


PLACES = (
    ("alerts", "message"), ("services", "detail"), ("runs", "detail"), ("generations", "reason"), ("drift", "examples"),
    ("dag_run", "conf"), ("dag_run_note", "content"), ("task_instance_note", "content"), ("log", "extra"),
    ("rendered_task_instance_fields", "rendered_fields"), ("xcom", "value"),
)  # fmt: skip
"""(table, column) of the operations database and of Airflow's in which something may be said of anybody. Everything
else there are numbers, names and positions of ours."""


def _tidy(settings: Settings, wanted: Wanted) -> None:
    with ops.connect(settings) as connection:
        for row in connection.execute("SELECT run_id, report::text AS report FROM comparisons").fetchall():
            if wanted.is_said("", row["report"].encode()):  # its examples may be his rows, names and all
                connection.execute("DELETE FROM comparisons WHERE run_id = %s", (row["run_id"],))
        connection.execute("VACUUM (ANALYZE) comparisons")
    for database, entity in databases(settings):
        if database != settings.catalog:
            scrub(database, entity, wanted)
    faults.point("erase.scrubbed")
    for path in files(settings.home / "logs"):
        blot(path, wanted)


def scrub(database: Database, entity: str, wanted: Wanted) -> int:
    """Put the word ``erased`` in the place of what is found in ``PLACES`` of a database, whose JSON is of an entity.
    Returns in how many cells. What was written meanwhile stays for the next call."""
    number = 0
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for table, column, kind in connection.execute(_THERE, ([f"{table}.{name}" for table, name in PLACES],)):
            name, cell = sql.Identifier("public", table), sql.Identifier(column)
            query = sql.SQL("SELECT ctid::text, {0}::text FROM {1} WHERE {0} IS NOT NULL").format(cell, name)
            update = sql.SQL("UPDATE {1} SET {0} = %s::{2} WHERE ctid = %s::tid AND {0}::text = %s").format(
                cell, name, sql.SQL(kind)
            )
            for place, text in connection.execute(query).fetchall():
                made = without(wanted, entity, text, kind.startswith("json"))
                if made != text:
                    number += connection.execute(update, (made, place, text)).rowcount
            connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(name))  # statistics keep values of columns too
    return number


_THERE = """
SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns
WHERE table_schema = 'public' AND table_name || '.' || column_name = ANY(%s)
"""

ERASED = "erased"


def without(wanted: Wanted, entity: str, text: str, is_json: bool) -> str:
    """A text with the word ``erased`` where something was; in JSON only in texts, never in keys and numbers. A text in
    which it is spelled otherwise than it is written goes whole."""
    if not wanted.is_said(entity, text.encode()):
        return text
    if is_json:
        return json.dumps(_blanked(wanted, entity, json.loads(text)))
    made = wanted.all.sub(ERASED.encode(), text.encode()).decode()
    return ERASED if wanted.is_said(entity, made.encode()) else made


def _blanked(wanted: Wanted, entity: str, said: Any, name: str = "") -> Any:
    if isinstance(said, dict):
        return {key: _blanked(wanted, entity, value, key) for key, value in said.items()}
    if isinstance(said, list):
        return [_blanked(wanted, entity, value, name) for value in said]
    if not isinstance(said, str):
        return said
    made = without(wanted, entity, said, False)
    return ERASED if wanted.is_said(entity, json.dumps({name: made}).encode()) else made


def blot(path: Path, wanted: Wanted) -> None:
    """Write asterisks over the lines of a log in which something is, in their place: whoever has it open goes on
    writing."""
    at = 0
    lines = path.read_bytes().splitlines(keepends=True)
    if not any(map(wanted.is_in, lines)):
        return
    with path.open("r+b") as file:
        for line in lines:
            if wanted.is_in(line):
                file.seek(at)
                file.write(b"*" * len(line.rstrip(b"\r\n")))
            at += len(line)


def _wanted(row: dict[str, Any]) -> Wanted:
    """Everything to look for."""
    return Wanted(row["ref"], row["identifying"] or ())


def prove(settings: Settings, ref: str, erasure: int | None = None) -> Proof:
    """Search every store for what identifies a guest: his ref and, while his erasure is under way, everything else that
    was gathered of him when it began. Before the erasure it finds him, in whatever store he is."""
    wanted, remarks = Wanted(ref), []
    if erasure is not None:
        with ops.connect(settings) as connection:
            row = row_of(connection, erasure)
        wanted = _wanted(row) if row["ref"] is not None else wanted
        if row["left_out"]:
            remarks.append(
                f"{row['left_out']} refs and addresses were not looked for: others have them too, or they are short or "
                "numbers"
            )
    if wanted.weak:
        remarks.append(
            "the ref is short or a number: it was looked for as key of records, in guestRef and in columns of guests, "
            "not in texts, names, metadata and files"
        )
    stores = search(settings, wanted)
    topics = [store for store in stores if isinstance(store, InTopic)]
    return Proof(stores, waiting_for(settings, topics), remarks)


def waiting_for(settings: Settings, topics: Iterable[InTopic]) -> list[Waiting]:
    """Where Kafka still has something, and when its retention has passed it at the latest: the segment that it is in
    is closed after ``segment.ms``, and goes when its newest record is older than ``retention.ms``."""
    there = [topic for topic in topics if topic.last]
    client = admin(settings)  # has to live as long as its futures
    resources = [ConfigResource(ResourceType.TOPIC, _name(topic)) for topic in there]
    configs = {resource.name: future.result(TIMEOUT) for resource, future in client.describe_configs(resources).items()
               } if resources else {}  # fmt: skip
    found = []
    for topic in there:
        config = {name: entry.value for name, entry in configs[_name(topic)].items()}
        late = int(config["retention.ms"]) + int(config["segment.ms"])
        if config["retention.ms"] == "-1":
            late = FOREVER_MS
        compacted = "compact" in config["cleanup.policy"]
        if compacted:
            late = int(config["max.compaction.lag.ms"]) + int(config["delete.retention.ms"]) + int(config["segment.ms"])
        for partition, (last, time) in sorted(topic.last.items()):
            gone = datetime.fromtimestamp(time / 1000, UTC) + timedelta(milliseconds=min(late, FOREVER_MS))
            found.append(Waiting(_name(topic), partition, last, gone, compacted))
    return found


FOREVER_MS = 100 * 365 * 24 * 3600 * 1000


def _name(topic: InTopic) -> str:
    return topic.store.removeprefix("kafka: ")


def _bound_compaction(settings: Settings) -> None:
    """Let compacted topics that were made before forget what is deleted within the time that new ones do."""
    client = admin(settings)  # has to live as long as its futures
    compacted = {*(latest_topic(entity) for entity in DERIVED), BAD_TOPIC} & client.list_topics(
        timeout=TIMEOUT
    ).topics.keys()
    there = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(compacted)])
    longer = []
    for resource, future in there.items():
        found = future.result(TIMEOUT)
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in BOUNDED.items()
            if int(found[name].value) > int(value)
        ]
        if entries:
            longer.append(ConfigResource(ResourceType.TOPIC, resource.name, incremental_configs=entries))
    for altered in client.incremental_alter_configs(longer).values() if longer else ():
        altered.result(TIMEOUT)


def read_positions(settings: Settings) -> Vector:
    """Up to where those of our services that read a topic have read it, of each topic-partition of ``PURGED``: the
    archive and the speed layer, ``derive``, ``commands``, and capture. Topics that none of them reads are not named."""
    archived = stored_offsets(settings)
    with ops.connect(settings) as connection:
        rows = connection.execute("SELECT topic, kafka_partition, kafka_offset FROM archived").fetchall()
        beat = connection.execute("SELECT detail FROM services WHERE name = 'speed'").fetchone()
    ingested: Vector = {}
    for row in rows:
        ingested.setdefault(row["topic"], {})[row["kafka_partition"]] = row["kafka_offset"]
    speed = from_json(beat["detail"].get("end", {})) if beat else {}
    derived = committed_offsets(settings, GROUP, SOURCES)
    answered = committed_offsets(settings, COMMANDS_GROUP, [command_topic(name) for name in COMMANDS])
    positions: Vector = {}
    for topic in settings.topics:
        readers = [archived, ingested, speed, *([derived] if topic in SOURCES else [])]
        positions[topic] = {
            p: min(reader.get(topic, {}).get(p, 0) for reader in readers) for p in range(settings.kafka.partitions)
        }
    for name in COMMANDS:
        topic = command_topic(name)
        positions[topic] = {p: answered.get(topic, {}).get(p, 0) for p in range(settings.kafka.partitions)}
    captured = stream.committed(settings) if settings.profile == "full" else None
    positions[stream.TOPIC] = {0: needed_from(captured)}
    return positions


def needed_from(captured: tuple[int, str] | None) -> int:
    """Where capture reads from when it begins again: during a snapshot it goes back to before that began. ``captured``:
    what it committed last."""
    if captured is None:
        return 0
    offset, text = captured
    since = Mark.from_json(text).since if text else None
    return offset if since is None else min(offset, since)


def purgeable(waiting: Iterable[Waiting], positions: Vector) -> list[Waiting]:
    """What may be cut off: in topics of ``PURGED``, where every reader of ours (:func:`read_positions`) is past it."""
    return [
        one
        for one in waiting
        if one.topic.startswith(PURGED)
        and one.topic not in (OUTCOMES, BAD_TOPIC)
        and positions.get(one.topic, {}).get(one.partition, one.last + 1) > one.last
    ]


def purge(settings: Settings, waiting: Iterable[Waiting]) -> list[Waiting]:
    """Let Kafka forget everything up to the guest's last record in each partition, others' included, where all who read
    it here are past that. Returns what was cut off. A second call finds nothing left; consumers of ``patch.*`` that are
    behind miss what is cut off."""
    cut = purgeable(waiting, read_positions(settings))
    places = [TopicPartition(one.topic, one.partition, one.last + 1) for one in cut]
    client = admin(settings)  # has to live as long as its futures
    try:
        for future in client.delete_records(places).values() if places else ():
            future.result(TIMEOUT)
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} did not cut off {places}: {error}") from error
    return cut


def finish(settings: Settings, erasure: int) -> Proof:
    """The last step, to be repeated until it is done: search; cut off the log where that was asked for; and if nothing
    is found, forget who it is. Done already, it searches for nothing. Raises TransientError where an earlier step is
    missing, ConflictError where something is that time does not help."""
    with ops.connect(settings) as connection:
        row = row_of(connection, erasure)
        if row["state"] == "done":
            return Proof()
        if STATES.index(row["state"]) < STATES.index("rewritten") or row["derived_at"] is None:
            raise TransientError(
                f"erasure {erasure} is {row['state']}"
                + ("" if row["derived_at"] else ", and derive has not taken the newest versions away")
                + ": anabranch erase-guest --resume goes on"
            )
        proof = Proof()
        if row["ref"] is not None:  # else the search has found nothing, and this was killed afterwards
            advance(connection, erasure, "waiting")
            proof = _searched(settings, connection, row)
            if proof.found:
                return proof
            connection.execute(
                "UPDATE erasures SET ref = NULL, identifying = NULL, found = '[]' WHERE erasure = %s", (erasure,)
            )
            faults.point("erase.forgotten")
        connection.execute("VACUUM (ANALYZE) erasures")
        backup(settings, keep=1)  # the ones before know whom was looked for
        connection.execute("UPDATE erasures SET finished_at = now() WHERE erasure = %s", (erasure,))
        advance(connection, erasure, "done")
    return proof


def _searched(settings: Settings, connection: Connection, row: dict[str, Any]) -> Proof:
    """The proof of an erasure that is under way, after all that can be done without Spark. Raises ConflictError."""
    erasure = int(row["erasure"])
    _tidy(settings, _wanted(row))  # what was said of it meanwhile
    proof = prove(settings, row["ref"], erasure)
    if row["purge"] and purge(settings, proof.waiting):
        proof = prove(settings, row["ref"], erasure)
    faults.point("erase.searched")
    told = [{"store": store.store, "number": store.number} for store in proof.found]
    connection.execute("UPDATE erasures SET found = %s WHERE erasure = %s", (json.dumps(told), erasure))
    if proof.elsewhere:
        places = "; ".join(f"{one.store}: {', '.join(one.places[:3])}" for one in proof.elsewhere)
        raise ConflictError(
            f"erasure {erasure}: the guest is not in the log alone, but in {places}. What came late goes with: "
            "anabranch erase-guest --resume"
        )
    return proof
