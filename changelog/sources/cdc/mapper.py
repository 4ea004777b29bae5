"""What follows for the log from the stream of captured changes. No I/O but the store of a snapshot's rows.

Three rules make the log say what the database says, wherever anything was killed:

- Rows are taken by database transaction, whole, when its end has come; one whose end is not after the last one
  taken was delivered again and is nothing new.
- ``original`` is what the log last said; where the database says the same, nothing is written.
- A snapshot is complete when each of its tables was read to its end, counting what the stream said meanwhile, which
  wins. Then the log is compared with it: what the log has and the snapshot has not is deleted. Until the first
  complete snapshot of a life of the stream nothing is written, for what is not known cannot be added to.

A *life* of the stream is what one replication slot gave. Whoever makes another slot says so in the stream.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from changelog.envelope import Entity, encode, envelope
from changelog.exact import parse
from changelog.latest import Version
from changelog.producer import Record
from changelog.sources.cdc.database import REPUBLICATIONS
from changelog.sources.cdc.events import Anew, Changed, Completed, End, Event, Read, Started, TableRead, Truncated
from changelog.sources.cdc.mapping import ENTITY, TABLES, head, item, lines, ref_of, whole, with_items
from changelog.sources.cdc.rows import Rows
from changelog.validation import check
from runtime.errors import ContractError
from runtime.settings import topic_of

log = logging.getLogger("cdc")

SERVICE = "shop-database"
REPUBLISHED = "republished"
"""In the identifier of what was written because somebody found that the views differ from the shop."""

ASKED = 16
"""So many requests to republish are followed at once; of older ones nothing comes any more."""

BAD_TOPIC = "cdc.bad"
"""Compacted: each entity whose newest rows the log's schema refuses, as the shop has it. Key: entity/ref."""

PARTS = {"guest": ("customers",), "session": ("sessions",), "order": ("orders", "order_items")}
"""Entity → the tables whose rows make it; the first has a row for each."""

Name = tuple[str, str]
"""entity, ref."""


class Log(Protocol):
    """What the log last said (``changelog.said.Said``)."""

    def find(self, entity: str, ref: str) -> tuple[str, Version] | None: ...

    def all(self, entity: str) -> Iterator[tuple[str, Version]]: ...


class Mark(NamedTuple):
    """How far the mapper is, beside its offset: committed with it.

    ``life``: of the stream; ``begun``: the offset of the record that says so. ``lsn``: where the last transaction that
    was taken ended. ``whole``: a snapshot of all tables was completed in this life. ``since``, ``started``: where the
    snapshot that is under way is read from, and the offset at which it was announced; None if none is.
    """

    life: str
    begun: int
    lsn: int = 0
    whole: bool = False
    since: int | None = None
    started: int | None = None

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "Mark":
        return cls(**json.loads(text))


@dataclass
class Opened:
    """A database transaction whose end has not come. ``first``: the offset of its first record."""

    first: int
    events: dict[int, Changed | Truncated] = field(default_factory=dict)


@dataclass
class Draft:
    """An entity within a transaction: ``head`` None is one that is not there; ``items`` None are items that nobody
    knows, and ``torn`` says that some of them changed all the same. ``request``: the one to republish it."""

    head: Entity | None
    items: dict[int, Entity] | None
    torn: bool = False
    request: str | None = None


@dataclass
class Asked:
    """What the stream has changed since a request to republish was opened: entities, or all of a kind."""

    names: set[Name] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)


@dataclass
class Snapshot:
    """A snapshot under way, announced at ``started``; ``done``: tables that were read to their end; ``emptied``: those
    that were truncated since."""

    rows: Rows
    started: int
    done: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)


class Mapper:
    """Takes the records of the stream in the order of their offsets, beginning with ``start``.

    ``mark`` and ``resume`` are what was committed last (None and 0 in the beginning), ``bad`` what ``cdc.bad`` holds.
    ``rewind`` tells, for the offset at which a snapshot is announced, from where on the stream is to be known to it: a
    transaction may be in the stream shortly before others can see it, so from some time before.
    """

    def __init__(
        self,
        log: Log,
        prefix: str,
        directory: Path,
        mark: Mark | None,
        resume: int,
        bad: dict[Name, Entity],
        rewind: Callable[[int], int] = lambda offset: offset,
    ) -> None:
        self._log, self._prefix, self._directory, self._rewind = log, prefix, directory, rewind
        self.mark, self._resume, self.bad = mark, resume, bad
        self._open: dict[int, Opened] = {}
        self._written: dict[Name, tuple[str, Entity] | None] = {}
        self._snapshot: Snapshot | None = None
        self._asked: dict[str, Asked] = {}
        self._attempt = uuid.uuid4().hex[:6]
        """A part of a snapshot may be written, and then, by another attempt, something else of the same entity if
        somebody wrote of it meanwhile: another change, so it has to have another identity."""

        self.reread: int | None = None
        """Where the stream has to be read from next, if not behind the record that was taken last."""

        self.unknown = 0
        """Changes of orders of which the log has nothing to add them to: a snapshot mends it."""

        if mark is not None and mark.since is not None and mark.started is not None:
            self._snapshot = Snapshot(Rows(directory), mark.started)

    @property
    def start(self) -> int:
        """The offset to begin reading at."""
        return self._resume if self.mark is None or self.mark.since is None else self.mark.since

    def safe(self, following: int) -> int:
        """The offset that may be committed when all before ``following`` is taken: no open transaction lies before."""
        return max(self._resume, min([following, *(opened.first for opened in self._open.values())]))

    def settled(self) -> None:
        """What was written is in the log that is asked."""
        self._written.clear()

    def take(self, offset: int, event: Event | None) -> Iterator[list[Record]]:
        """What follows from one record: to be written in this order, all of it, before the next is taken.

        What a transaction has changed is one list. What a snapshot changes is many, and may be written in parts, each
        of whole lists; the mark does not move before the last.

        Raises ContractError where the stream cannot be what it has to be.
        """
        again = offset < self._resume  # read before, and now for the snapshot alone
        if isinstance(event, Anew):
            if not again:
                self._begin(offset, event)
        elif self.mark is None or event is None:
            return
        elif isinstance(event, Changed | Truncated):
            self._open.setdefault(event.tx, Opened(offset)).events[event.order] = event
        elif isinstance(event, End):
            yield from self._end(self.mark, event, again)
        elif isinstance(event, Started):
            if not again:
                self._start(self.mark, offset)
        elif self._snapshot is not None and offset > self._snapshot.started:
            yield from self._reading(self.mark, self._snapshot, offset, event)

    def _begin(self, offset: int, event: Anew) -> None:
        self._drop_snapshot()
        self._open.clear()
        self._asked.clear()
        self.mark = Mark(event.life, offset)

    def _end(self, mark: Mark, end: End, again: bool) -> Iterator[list[Record]]:
        opened = self._open.pop(end.tx, None)
        new = not again and end.lsn > mark.lsn
        if opened is None:
            if new and end.rows:
                raise ContractError(
                    f"transaction {end.tx} ended at {end.lsn} and none of its {end.rows} rows came; {REMEDY}"
                )
            if new:
                self.mark = mark._replace(lsn=end.lsn)
            return
        if new and len(opened.events) != end.rows:
            raise ContractError(
                f"transaction {end.tx} ended at {end.lsn} with {end.rows} rows, {len(opened.events)} came; {REMEDY}"
            )
        events = [event for _, event in sorted(opened.events.items())]
        if self._snapshot is not None:
            for event in events:
                self._stream(self._snapshot, event)
        if new:
            self._open.clear()  # of others there can only be what was delivered in vain
            self.mark = mark._replace(lsn=end.lsn)
            if mark.whole:
                yield list(self._changes(events, f"{mark.life}:{lsn_text(end.lsn)}:{end.tx}"))

    def _changes(self, events: list[Changed | Truncated], position: str) -> Iterator[Record]:
        """What one database transaction has changed in the end, entity by entity."""
        drafts: dict[Name, Draft] = {}
        for event in events:
            if event.table == REPUBLICATIONS and isinstance(event, Changed) and event.created and event.after:
                self._republish(drafts, event.after["request"], event.after["content"])
            if event.table not in ENTITY:
                continue
            if isinstance(event, Truncated):
                for asked in self._asked.values():
                    asked.kinds.add(ENTITY[event.table])
                for name in self._all(ENTITY[event.table], drafts):
                    draft = self._draft(drafts, name)
                    if event.table == "order_items":
                        draft.items = {}
                    else:
                        draft.head = None
                continue
            self._apply(drafts, event)
        for (entity, ref), draft in drafts.items():
            for asked in self._asked.values():
                asked.names.add((entity, ref))
            told = f"{position}:{REPUBLISHED}:{draft.request}" if draft.request else position
            yield from self._say(entity, ref, draft, told)

    def _republish(self, drafts: dict[Name, Draft], request: str, content: str | None) -> None:
        """A request is opened, or its content is there, which holds where the stream has said nothing since."""
        if content is None:
            self._asked[request] = Asked()
            for old in list(self._asked)[:-ASKED]:
                del self._asked[old]
            return
        asked = self._asked.pop(request, None)
        if asked is None:
            log.warning("the request %s to republish was opened before this service began: left out", request)
            return
        said = parse(content.encode())
        rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for table, some in said["rows"].items():
            for row in some:
                rows.setdefault(table, {}).setdefault(ref_of(self._prefix, table, row), []).append(row)
        for entity, ref in said["names"]:
            if entity in asked.kinds or (entity, ref) in asked.names:
                continue
            (row,) = rows.get(PARTS[entity][0], {}).get(ref, [None])
            draft = drafts[entity, ref] = Draft(None, {}, request=request)
            if row is not None:
                draft.head = head(self._prefix, PARTS[entity][0], row, {})
                parts = rows.get("order_items", {}).get(ref, []) if entity == "order" else []
                draft.items = {int(one["line"]): item(one, {}) for one in parts}

    def _apply(self, drafts: dict[Name, Draft], event: Changed) -> None:
        table, entity, before = event.table, ENTITY[event.table], event.before
        after = None if event.after is None else whole(before, event.after)
        old = None if before is None else ref_of(self._prefix, table, before)
        new = None if after is None else ref_of(self._prefix, table, after)
        if table == "order_items":
            if before is not None and old is not None and (gone := self._draft(drafts, ("order", old)).items):
                known = gone.pop(int(before["line"]), {})
            else:
                known = {}
            if after is not None and new is not None:
                draft = self._draft(drafts, ("order", new))
                if draft.items is None:
                    draft.torn = True
                else:
                    draft.items[int(after["line"])] = item(after, known)
            return
        if old is not None and old != new:
            self._draft(drafts, (entity, old)).head = None
        if after is not None and new is not None:
            draft = self._draft(drafts, (entity, new))
            if event.created:
                draft.items = {}  # those that it has come after it
            draft.head = head(self._prefix, table, after, draft.head or {})

    def _draft(self, drafts: dict[Name, Draft], name: Name) -> Draft:
        if name not in drafts:
            entity, _ = name
            shop = self.bad.get(name)
            if shop is None and (known := self._known(name)) is not None:
                shop = known[1]
            if shop is None:
                drafts[name] = Draft(None, None if entity == "order" else {})
            elif entity == "order":
                drafts[name] = Draft({k: v for k, v in shop.items() if k != "items"}, lines(shop))
            else:
                drafts[name] = Draft(shop, {})
        return drafts[name]

    def _say(self, entity: str, ref: str, draft: Draft, position: str) -> Iterator[Record]:
        """The records that make the log say of an entity what the database says; none where it does already."""
        current = draft.head
        if draft.items is None and (current is not None or draft.torn):
            self.unknown += 1
            log.warning("%s changed, and its items are not known here: anabranch cdc snapshot orders", ref)
            return
        if current is not None and draft.items is not None and entity == "order":
            current = with_items(current, draft.items.values())
        name, known, identifier = (entity, ref), self._known((entity, ref)), f"{position}:{ref}"
        guest, original = known if known is not None else (None, None)
        if current is None or current == original:
            if current is None and guest is not None:
                yield self._record(entity, guest, envelope(SERVICE, identifier, None, original))
                self._written[name] = None
            yield from self._no_longer_bad(name)
            return
        if self.bad.get(name) == current:
            return
        of = current.get("guestRef") if entity != "guest" else ref
        if guest is not None and guest != of:  # another guest's from now on: another key
            yield self._record(entity, guest, envelope(SERVICE, identifier, None, original))
            self._written[name] = None
            guest = original = None
        made = self._record(
            entity, of if isinstance(of, str) else ref, envelope(SERVICE, identifier, current, original)
        )
        yield made
        if check(entity, made.key, made.value or b"").reason is None:
            self._written[name] = (str(of), current)
            yield from self._no_longer_bad(name)
        else:  # the layers keep it as bad; the next change of it starts from here all the same
            self.bad[name] = current
            yield Record(BAD_TOPIC, bad_key(name), encode(current))

    def _no_longer_bad(self, name: Name) -> Iterator[Record]:
        if self.bad.pop(name, None) is not None:
            yield Record(BAD_TOPIC, bad_key(name), None)

    @staticmethod
    def _record(entity: str, guest: str, made: dict[str, Any]) -> Record:
        return Record(topic_of(entity), guest.encode(), encode(made))

    def _known(self, name: Name) -> tuple[str, Entity] | None:
        """What the log last said, with what was written since: the guest and the entity."""
        if name in self._written:
            return self._written[name]
        found = self._log.find(*name)
        return None if found is None else (found[0], found[1].current)

    def _all(self, entity: str, drafts: dict[Name, Draft]) -> list[Name]:
        """Every entity of the shop that is known from anywhere."""
        logged = (version.current["ref"] for _, version in self._log.all(entity))
        names = {(entity, ref): None for ref in logged if ref.startswith(self._prefix)}
        for others in (self._written, self.bad, drafts):
            names |= {name: None for name in others if name[0] == entity}
        return list(names)

    def _start(self, mark: Mark, offset: int) -> None:
        """A snapshot is announced: read the stream again from a little before, for it alone."""
        self._drop_snapshot()
        unfinished = (opened.first for opened in self._open.values())
        since = min([offset, max(mark.begun + 1, self._rewind(offset)), *unfinished])
        self._snapshot = Snapshot(Rows(self._directory), offset)
        self.mark = mark._replace(since=since, started=offset)
        self._resume = max(self._resume, offset + 1)
        self.reread = since
        log.info("a snapshot begins at offset %d", offset)

    def _reading(self, mark: Mark, snapshot: Snapshot, offset: int, event: Event) -> Iterator[list[Record]]:
        if isinstance(event, Read):
            if event.table in ENTITY and event.table not in snapshot.emptied:
                ref = ref_of(self._prefix, event.table, event.row)
                snapshot.rows.read(event.table, [(ref, _line(event.table, event.row), event.row)])
        elif isinstance(event, TableRead):
            (snapshot.done.add if event.completely else snapshot.done.discard)(event.table)
        elif isinstance(event, Completed):
            for entity, tables in PARTS.items():
                if snapshot.done.issuperset(tables):
                    yield from self._compare(entity, snapshot, f"{mark.life}:snapshot:{offset}:{self._attempt}")
            if missing := set(TABLES) - snapshot.done:
                log.warning("the snapshot says nothing of %s", ", ".join(sorted(missing)))
            everything = mark.whole or not missing
            self._drop_snapshot()
            self.mark = mark._replace(whole=everything, since=None, started=None)
            log.info("the snapshot is compared with the log")
        else:  # given up
            self._drop_snapshot()
            self.mark = mark._replace(since=None, started=None)

    def _compare(self, entity: str, snapshot: Snapshot, position: str) -> Iterator[list[Record]]:
        table, rows, seen = PARTS[entity][0], snapshot.rows, 0
        for ref, row in rows.all(table):
            known = self._draft({}, (entity, ref))
            current = Draft(head(self._prefix, table, row, known.head or {}), {})
            if entity == "order":
                before = known.items or {}
                parts = rows.of("order_items", ref)
                current.items = {int(one["line"]): item(one, before.get(int(one["line"]), {})) for one in parts}
            yield list(self._say(entity, ref, current, position))
            seen += 1
        for name in self._all(entity, {}):
            if not rows.has(table, name[1]):
                yield list(self._say(*name, Draft(None, {}), position))
        log.info("%d of %s are in the snapshot", seen, entity)

    def _stream(self, snapshot: Snapshot, event: Changed | Truncated) -> None:
        """Let a snapshot know what the stream says of a row."""
        if event.table not in ENTITY:
            return
        if isinstance(event, Truncated):
            snapshot.rows.truncate(event.table)
            snapshot.emptied.add(event.table)  # what is there from now on comes by the stream
            return
        table, before = event.table, event.before
        after = None if event.after is None else whole(before, event.after)
        if before is not None:
            snapshot.rows.stream(table, ref_of(self._prefix, table, before), _line(table, before), None)
        if after is not None:
            snapshot.rows.stream(table, ref_of(self._prefix, table, after), _line(table, after), dict(after))

    def _drop_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.rows.close()
            self._snapshot = None

    def close(self) -> None:
        """Give the files back."""
        self._drop_snapshot()


REMEDY = "Debezium promises otherwise; read the database whole: anabranch cdc anew"


def bad_key(name: Name) -> bytes:
    """Key of an entity in ``cdc.bad``."""
    return "/".join(name).encode()


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _line(table: str, row: Any) -> int:
    return int(row["line"]) if table == "order_items" else 0
