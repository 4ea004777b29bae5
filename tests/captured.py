"""A database, what Debezium makes of its transactions, and a log: models for the tests of capture, in plain Python.

The model of Debezium does what the real one was seen to do, and some more: it goes back any number of records, reads a
snapshot in chunks beside the stream, leaves out of a chunk what changed while it was read, and may read a chunk from
shortly before what the stream has said already.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from changelog.envelope import envelope
from changelog.exact import parse, text_of
from changelog.latest import Version
from changelog.producer import Record
from changelog.sources.cdc.database import REPUBLICATIONS
from changelog.sources.cdc.events import Anew, Changed, Completed, End, Event, Read, Started, TableRead, Truncated
from changelog.sources.cdc.mapper import BAD_TOPIC, Mapper, Mark, Name
from changelog.sources.cdc.mapping import ENTITY, ref_of
from changelog.validation import check
from runtime.settings import entity_of, topic_of

Key = tuple[int, ...]
Rows = dict[Key, dict[str, Any]]
TABLES = ("customers", "sessions", "orders", "order_items")
SIGNAL = "cdc.signal"
TIME = "2026-11-21T10:00:00.123456Z"
MILLIS = "2026-11-21T10:00:00.123Z"
PREFIX = "shop-"


class Database:
    """Four tables with their foreign keys. Each operation appends the row changes that the database would publish."""

    def __init__(self) -> None:
        self.tables: dict[str, Rows] = {table: {} for table in TABLES}
        self.changes: list[tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]] = []
        """Of the transaction that is open: op, table, before, after."""

        self.serial = 0

    def put(self, table: str, key: Key, row: dict[str, Any]) -> None:
        before = self.tables[table].get(key)
        self.tables[table][key] = row
        self.changes.append(("u" if before else "c", table, before, row))

    def drop(self, table: str, key: Key) -> None:
        self.changes.append(("d", table, self.tables[table].pop(key), None))

    def rekey(self, table: str, old: Key, new: Key, row: dict[str, Any]) -> None:
        """A changed key comes as a delete and an insert."""
        self.drop(table, old)
        self.tables[table][new] = row
        self.changes.append(("c", table, None, row))

    def act(self, op: str, a: int, b: int, c: int) -> None:
        """One statement of an application; numbers choose rows and values. Does nothing where it cannot."""
        self.serial += 1
        customers, sessions, orders = (sorted(self.tables[table]) for table in TABLES[:3])
        customer = customers[a % len(customers)][0] if customers else None
        order = orders[a % len(orders)] if orders else None
        if op == "customer":
            self.put("customers", (a,), {"id": a, "first_name": f"n{b}", "country": None if c == 0 else f"c{c}",
                                         "created_at": TIME, "modified_at": TIME})  # fmt: skip
        elif op == "session" and customer is not None:
            self.put("sessions", (b,), {"id": b, "customer_id": customer, "channel": "WEB" if c else "PIGEON",
                                        "started_at": TIME, "ended_at": None, "modified_at": TIME})  # fmt: skip
        elif op == "order" and customer is not None and (b,) not in self.tables["orders"]:
            self.put("orders", (b,), order_row(b, customer, "PLACED", self.serial))
            for line in range(1, c + 1):
                self.put("order_items", (b, line), item_row(b, line, self.serial))
        elif op == "status" and order is not None:
            row = self.tables["orders"][order]
            self.put("orders", order, {**row, "status": ("PLACED", "PAID", "SHIPPED")[b % 3]})
        elif op == "currency" and order is not None:
            self.put("orders", order, {**self.tables["orders"][order], "currency": "GBP" if b % 2 else None})
        elif op == "owner" and order is not None and customers:
            self.put("orders", order, {**self.tables["orders"][order], "customer_id": customers[b % len(customers)][0]})
        elif op == "item" and order is not None:
            self.put("order_items", (order[0], b + 1), item_row(order[0], b + 1, c))
        elif op == "drop item" and (items := self.items(order)):
            self.drop("order_items", items[b % len(items)])
        elif op == "drop order" and order is not None:
            self.drop("orders", order)
            for key in self.items(order):
                self.drop("order_items", key)
        elif op == "drop session" and sessions:
            self.drop("sessions", sessions[a % len(sessions)])
        elif op == "drop customer" and customer is not None:
            self.drop_customer(customer)
        elif op == "rekey order" and order is not None and (b,) not in self.tables["orders"]:
            items = self.items(order)
            self.rekey("orders", order, (b,), {**self.tables["orders"][order], "id": b})
            for key in items:
                self.rekey("order_items", key, (b, key[1]), {**self.tables["order_items"][key], "order_id": b})
        elif op == "rekey customer" and customer is not None and (b,) not in self.tables["customers"]:
            self.rekey("customers", (customer,), (b,), {**self.tables["customers"][customer,], "id": b})
            for table in ("sessions", "orders"):
                for key, row in list(self.tables[table].items()):
                    if row["customer_id"] == customer:
                        self.put(table, key, {**row, "customer_id": b})
        elif op == "truncate orders":
            for table in ("orders", "order_items"):
                self.truncate(table)
        elif op == "truncate items":
            self.truncate("order_items")

    def drop_customer(self, customer: int) -> None:
        for key, row in list(self.tables["orders"].items()):
            if row["customer_id"] == customer:
                self.drop("orders", key)
                for item in self.items(key):
                    self.drop("order_items", item)
        self.drop("customers", (customer,))
        for key, row in list(self.tables["sessions"].items()):
            if row["customer_id"] == customer:
                self.drop("sessions", key)

    def truncate(self, table: str) -> None:
        self.tables[table] = {}
        self.changes.append(("t", table, None, None))

    def items(self, order: Key | None) -> list[Key]:
        return [] if order is None else sorted(key for key in self.tables["order_items"] if key[0] == order[0])

    def documents(self) -> dict[Name, dict[str, Any]]:
        """Every entity as the log should have it, written down independently of the mapper."""
        found: dict[Name, dict[str, Any]] = {}
        for (key,), row in self.tables["customers"].items():
            made = {"ref": f"shop-guest-{key}", "firstName": row["first_name"], "country": row["country"],
                    "createdAt": MILLIS, "modifiedAt": MILLIS}  # fmt: skip
            found["guest", made["ref"]] = made
        for (key,), row in self.tables["sessions"].items():
            made = {"ref": f"shop-session-{key}", "guestRef": f"shop-guest-{row['customer_id']}",
                    "channel": row["channel"], "startedAt": MILLIS, "modifiedAt": MILLIS}  # fmt: skip
            found["session", made["ref"]] = made
        for (key,), row in self.tables["orders"].items():
            items = [self.tables["order_items"][item] for item in self.items((key,))]
            made = {
                "ref": f"shop-order-{key}", "guestRef": f"shop-guest-{row['customer_id']}", "status": row["status"],
                "currency": row["currency"], "total": float(row["total"]), "createdAt": MILLIS, "modifiedAt": MILLIS,
                "items": [{"line": one["line"], "sku": one["sku"], "quantity": float(one["quantity"]),
                           "unitPrice": float(one["unit_price"])} for one in items],
            }  # fmt: skip
            found["order", made["ref"]] = made
        return {name: {k: v for k, v in made.items() if v is not None} for name, made in found.items()}


def order_row(key: int, customer: int, status: str, total: int) -> dict[str, Any]:
    return {"id": key, "customer_id": customer, "session_id": None, "status": status, "currency": "GBP",
            "country": None, "total": f"{total}.50", "created_at": TIME, "modified_at": TIME}  # fmt: skip


def item_row(order: int, line: int, price: int) -> dict[str, Any]:
    return {
        "order_id": order,
        "line": line,
        "sku": f"s{price}",
        "name": None,
        "quantity": "2",
        "unit_price": f"{price}.25",
    }


class Window:
    """A chunk of a snapshot: rows as they were read, and where in the log of the database the reading began."""

    def __init__(self, table: str, rows: Rows, low: int, last: bool, final: bool) -> None:
        self.table, self.rows, self.low, self.last, self.final = table, rows, low, last, final


class Debezium:
    """The stream that a database's transactions become. ``records`` is the topic."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.wal: list[list[Changed | Truncated] | Window | str] = []
        self.states: list[dict[str, Rows]] = [copy.deepcopy(database.tables)]
        """The database after so many entries of the WAL."""

        self.documents: list[dict[Name, dict[str, Any]]] = [database.documents()]
        self.records: list[Event] = []
        self.taken: list[int] = []
        """For every record, how many entries of the WAL are whole in the stream once it is there."""

        self._at, self._row = 0, 0
        self._floor = 0
        self._chunks: list[tuple[str, int]] = []
        self._open: Window | None = None
        self._lives = 0
        self._requests: list[tuple[str, int]] = []
        """To republish: those that are open, and where in the WAL."""

    def commit(self, signal: bool = False, republication: dict[str, Any] | None = None) -> None:
        """The open transaction of the database is committed. In the end it asks for a snapshot (``signal``), or says
        something of a request to republish."""
        changes, self.database.changes = self.database.changes, []
        tx = len(self.wal) + 500
        events: list[Changed | Truncated] = []
        for order, (op, table, before, after) in enumerate(changes, 1):
            if op == "t":
                events.append(Truncated(table, tx, order))
            else:
                events.append(Changed(table, tx, order, op == "c", before, after))
        if signal:
            events.append(Changed(SIGNAL, tx, len(events) + 1, True, None, {}))
        if republication:
            events.append(Changed(REPUBLICATIONS, tx, len(events) + 1, True, None, republication))
        self._append(events)

    def _append(self, entry: Any) -> None:
        self.wal.append(entry)
        self.states.append(copy.deepcopy(self.database.tables))
        self.documents.append(self.database.documents())

    def emit(self, number: int) -> None:
        """Send so many records more, as far as there are any."""
        for _ in range(number):
            if self._at == len(self.wal):
                return
            self._send()

    def _send(self) -> None:
        entry = self.wal[self._at]
        if isinstance(entry, str):
            self._record(Anew(f"life{self._lives}"))
            self._step()
        elif isinstance(entry, Window):
            changed = {
                (event.table, key_of(event.table, row))
                for past in self.wal[entry.low : self._at] if isinstance(past, list)
                for event in past if isinstance(event, Changed)
                for row in (event.before, event.after) if row is not None
            }  # fmt: skip
            for key, row in sorted(entry.rows.items()):
                if (entry.table, key) not in changed:
                    self._record(Read(entry.table, row))
            if entry.last:
                self._record(TableRead(entry.table, True))
            if entry.final:
                self._record(Completed())
            self._step()
        elif self._row < len(entry):
            if entry[self._row].table == SIGNAL:
                self._record(Started())
            self._record(entry[self._row])
            self._row += 1
        else:
            self._record(End(self._at + 500, (self._at + 1) * 100, len(entry)))
            self._step()

    def _record(self, event: Event) -> None:
        self.records.append(event)
        whole = isinstance(event, End | Completed)
        self.taken.append(self._at + 1 if whole else self._at)

    def _step(self) -> None:
        self._at, self._row = self._at + 1, 0

    def crash(self, back: int) -> None:
        """The connector is killed: it goes on from an earlier place, and reads a part of a snapshot again."""
        for _ in range(back):
            if self._row > 0:
                self._row -= 1
            elif self._at > self._floor:
                self._at -= 1
                entry = self.wal[self._at]
                self._row = len(entry) if isinstance(entry, list) else 0
        if self._open is not None:
            self._chunks.append((self._open.table, int(self._open.last)))
            self._open = None
        for place in range(self._at, len(self.wal)):
            entry = self.wal[place]
            if isinstance(entry, Window):
                self.wal[place] = []
                self._chunks.append((entry.table, int(entry.last)))
        if self._chunks:
            self._chunks = sorted(set(self._chunks), key=lambda chunk: (TABLES.index(chunk[0]), chunk[1]))
        if self._is_asked():
            self._chunks = [(table, half) for table in TABLES for half in (0, 1)]

    def snapshot(self) -> None:
        """The open transaction asks for a snapshot of all tables in its end, unless one is under way."""
        asks = not self._chunks and self._open is None
        self.commit(signal=asks)
        if asks:
            self._chunks = [(table, half) for table in TABLES for half in (0, 1)]

    def open_request(self) -> None:
        """Somebody asks to republish, in a transaction of his own."""
        self.commit()
        request = f"r{len(self.wal)}"
        self.commit(republication={"id": len(self.wal), "request": request, "content": None})
        self._requests.append((request, len(self.wal)))

    def close_request(self, late: int, names: list[Name]) -> None:
        """He has read what ``names`` are, some transactions ago but after he asked, and says so."""
        if not self._requests:
            return
        self.commit()
        request, since = self._requests.pop(0)
        seen = self.states[max(since, len(self.wal) - late)]
        rows = {
            table: [row for row in some.values() if (ENTITY[table], ref_of(PREFIX, table, row)) in names]
            for table, some in seen.items()
        }
        content = text_of({"names": names, "rows": rows}).decode()
        self.commit(republication={"id": len(self.wal), "request": request, "content": content})

    def close_requests(self, late: int, names: list[Name]) -> None:
        """All that are open are closed."""
        while self._requests:
            self.close_request(late, names)

    def read_chunk(self, late: int) -> None:
        """Read the next chunk, from a state of the database that is so many transactions old."""
        if self._open is not None or not self._chunks or self._is_asked():
            return
        table, half = self._chunks.pop(0)
        seen = self.states[max(self._floor, len(self.wal) - late)][table]
        mine = {key: row for key, row in seen.items() if (key[0] < 2) == (half == 0)}
        self._open = Window(table, mine, len(self.wal), half == 1, not self._chunks)

    def advance_snapshot(self, late: int) -> None:
        """A step of what is under way: a chunk is read, or its window closed."""
        if self._open is not None:
            self.close_chunk()
        else:
            self.read_chunk(late)

    def _is_asked(self) -> bool:
        """Whether what is still to be sent asks for a snapshot."""
        left = [
            entry if place else entry[self._row :]
            for place, entry in enumerate(self.wal[self._at :])
            if isinstance(entry, list)
        ]
        return any(event.table == SIGNAL for entry in left for event in entry)

    def close_chunk(self) -> None:
        """The window of the chunk is closed: a place in the WAL."""
        if self._open is not None:
            window, self._open = self._open, None
            self._append(window)

    def anew(self) -> None:
        """The slot is lost with what was not yet sent; another one begins, with a snapshot."""
        self._at, self._row, self._chunks, self._open = len(self.wal), 0, [], None
        self._floor = len(self.wal)
        self._lives += 1
        self._append("anew")
        self.snapshot()

    def finish(self) -> None:
        """Everything is sent, a snapshot that is under way included."""
        self.emit(10_000)
        while self._chunks or self._open is not None:
            self.read_chunk(0)
            self.close_chunk()
            self.emit(10_000)


def key_of(table: str, row: dict[str, Any]) -> Key:
    return (row["order_id"], row["line"]) if table == "order_items" else (row["id"],)


class Log:
    """The changelog, and what is committed with it: the mapper's offset and mark, and its topic of bad entities."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.offset, self.mark = 0, ""
        self.bad: dict[Name, dict[str, Any]] = {}
        self.newest: dict[str, dict[tuple[str, str], Version]] = defaultdict(dict)

    def commit(self, records: list[Record], offset: int | None, mark: str) -> None:
        for record in records:
            if record.topic == BAD_TOPIC:
                entity, _, ref = (record.key or b"").decode().partition("/")
                if record.value:
                    self.bad[entity, ref] = parse(record.value)
                else:
                    del self.bad[entity, ref]
                continue
            self.records.append(record)
            entity = entity_of(record.topic)
            if check(entity, record.key, record.value or b"").reason is None:
                said, guest = parse(record.value or b""), (record.key or b"").decode()
                ref = (said.get("current") or said["original"])["ref"]
                self.newest[entity].pop((guest, ref), None)
                if "current" in said:
                    provenance = said["provenance"]
                    at = len(self.records)
                    version = Version(said["current"], at, provenance["serviceName"], provenance["identifier"], 0)
                    self.newest[entity][guest, ref] = version
        if offset is not None:
            self.offset, self.mark = offset, mark

    def meddle(self, name: Name, guest: str, current: dict[str, Any] | None) -> None:
        """Somebody else writes of an entity of the shop's: a version, or that it is deleted."""
        entity, ref = name
        before = self.newest[entity].get((guest, ref))
        if current is None and before is None:
            return
        made = envelope("somebody", f"m{len(self.records)}", current, before.current if before else None)
        self.commit([Record(topic_of(entity), guest.encode(), text_of(made))], None, "")

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None:
        return next(((guest, v) for (guest, of), v in self.newest[entity].items() if of == ref), None)

    def all(self, entity: str) -> Iterator[tuple[str, Version]]:
        for (guest, _), version in list(self.newest[entity].items()):
            yield guest, version


class Service:
    """What the service does with the mapper, without Kafka: it takes some records and commits, or is killed."""

    def __init__(self, log: Log, directory: Path, rewind: int = 0) -> None:
        self.log = log
        mark = Mark.from_json(log.mark) if log.mark else None
        self.mapper = Mapper(log, PREFIX, directory, mark, log.offset, dict(log.bad), lambda at: max(0, at - rewind))
        self.next = self.mapper.start
        self.position = log.offset

    def take(self, stream: list[Event], number: int, part: int, killed: int | None) -> bool:
        """Take so many records in one transaction; a snapshot is written in parts. Returns False if it was killed, at
        the ``killed``-th moment at which that matters."""
        pending: list[Record] = []
        moments = 0

        def dies() -> bool:
            nonlocal moments
            moments += 1
            return killed is not None and moments > killed

        self.mapper.settled()
        for _ in range(number):
            if self.next >= len(stream):
                break
            event = stream[self.next]
            whole = isinstance(event, Completed)
            if whole and pending:
                if dies():
                    return False
                self._save(pending)
                pending = []
            for records in self.mapper.take(self.next, event):
                pending += records
                if whole and len(pending) >= part:
                    if dies():
                        return False
                    self.log.commit(pending, None, "")
                    self.mapper.settled()
                    pending = []
            self.next += 1
            self.position = max(self.position, self.next)
            if self.mapper.reread is not None:
                if dies():
                    return False
                self._save(pending)
                pending = []
                self.next, self.mapper.reread = self.mapper.reread, None
        if dies():
            return False
        self._save(pending)
        return True

    def _save(self, pending: list[Record]) -> None:
        mark = self.mapper.mark
        self.log.commit(pending, self.mapper.safe(self.position), mark.to_json() if mark else "")
