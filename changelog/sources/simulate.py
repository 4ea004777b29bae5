"""``simulate``: a deterministic shop. Everything in it is generated, and named so (service ``simulated-shop``).

The same seed, options and start give the same records, identifiers included: a second run on one log is all duplicates.
The chain rule holds: ``original`` is always what the shop last said of that entity. Every record is valid but for those
that are broken on purpose.
"""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from changelog.envelope import Entity, encode, envelope, timestamp
from changelog.producer import Record
from changelog.sources.checked import checked
from runtime.errors import TerminalError
from runtime.settings import topic_of

SERVICE = "simulated-shop"
GUESTS = 500
COUNTRIES = (("GB", "GBP"), ("FR", "EUR"), ("DE", "EUR"), ("IE", "EUR"), ("US", "USD"))
CHANNELS = ("WEB", "WEB", "WEB", "MOBILE", "MOBILE", "EMAIL", "CALL_CENTER")
NEXT_STATUS = {"PLACED": "PAID", "PAID": "SHIPPED", "SHIPPED": "DELIVERED"}
PAGES = {"SEARCH": "/search", "CHECKOUT": "/checkout"}
SKUS = [(f"sku-{n:03d}", Decimal(n * 37 % 9000 + 99) / 100) for n in range(200)]


class Shop:
    """The shop's state. ``made`` counts what was made, by kind: each entity, duplicate, late, broken."""

    def __init__(
        self,
        seed: int,
        start: str | None = None,
        duplicates: float = 0,
        late: float = 0,
        broken: float = 0,
        rate: float = 100,
    ) -> None:
        self._seed = seed
        self._random = random.Random(seed)  # a simulation
        self._duplicates, self._late, self._broken = duplicates, late, broken
        self._now = _parsed(start)
        self._step = timedelta(seconds=1 / rate if rate > 0 else 0.01)
        self._number = 0
        self._guests: list[Entity] = []
        self._sessions: dict[str, Entity] = {}
        self._orders: list[Entity] = []
        self._recent: list[Record] = []
        self.made: Counter[str] = Counter()

    def records(self, wanted: int) -> Iterator[Record]:
        """Exactly ``wanted`` records, duplicates and broken ones included."""
        for _ in range(wanted):
            self._now += self._step
            chance = self._random.random()
            if chance < self._duplicates and self._recent:
                self.made["duplicate"] += 1
                yield self._random.choice(self._recent)
            elif chance < self._duplicates + self._broken:
                self.made["broken"] += 1
                yield self._break()
            else:
                record = self._act()
                self._recent.append(record)
                if len(self._recent) > 1000:
                    self._recent = self._recent[500:]
                yield record

    def _act(self) -> Record:
        """One thing that happens in the shop."""
        if len(self._guests) < 5 or (len(self._guests) < GUESTS and self._random.random() < 0.02):
            return self._sign_up()
        guest = self._random.choice(self._guests)
        chance = self._random.random()
        if chance < 0.70:
            return self._event(guest)
        if chance < 0.80:
            return self._order(guest)
        if chance < 0.94 and self._orders:
            return self._change_order(self._random.randrange(len(self._orders)))
        if chance < 0.96 and self._orders:
            return self._delete_order(self._random.randrange(len(self._orders)))
        if chance < 0.99:
            return self._change_guest(guest)
        return self._delete_guest(guest)

    def _sign_up(self) -> Record:
        country, _ = self._random.choice(COUNTRIES)
        ref = self._ref("guest")
        guest = {
            "ref": ref,
            "firstName": self._random.choice(("Ada", "Grace", "Edsger", "Barbara", "Leslie")),
            "email": f"{ref}@example.com",
            "country": country,
            "createdAt": self._time(),
            "modifiedAt": self._time(),
        }
        self._guests.append(guest)
        return self._write("guest", ref, guest)

    def _change_guest(self, guest: Entity) -> Record:
        changed = {**guest, "country": self._random.choice(COUNTRIES)[0], "modifiedAt": self._time()}
        self._guests[self._guests.index(guest)] = changed
        return self._write("guest", guest["ref"], changed, guest)

    def _delete_guest(self, guest: Entity) -> Record:
        self._guests.remove(guest)
        self._sessions.pop(guest["ref"], None)
        return self._write("guest", guest["ref"], None, guest)

    def _event(self, guest: Entity) -> Record:
        ref = guest["ref"]
        session = self._sessions.get(ref)
        if session is None or self._random.random() < 0.05:
            session = {
                "ref": self._ref("session"),
                "guestRef": ref,
                "channel": self._random.choice(CHANNELS),
                "startedAt": self._time(),
                "modifiedAt": self._time(),
            }
            self._sessions[ref] = session
            return self._write("session", ref, session)
        happened = self._now
        if self._random.random() < self._late:
            happened -= timedelta(hours=self._random.uniform(1, 96))
            self.made["late"] += 1
        kind = self._random.choice(("VIEW", "VIEW", "VIEW", "SEARCH", "ADD", "REMOVE", "CHECKOUT"))
        event = {
            "ref": self._ref("event"),
            "guestRef": ref,
            "sessionRef": session["ref"],
            "type": kind,
            "channel": session["channel"],
            "sku": (sku := self._random.choice(SKUS)[0]),
            "page": PAGES.get(kind, f"/product/{sku}"),
            "createdAt": timestamp(happened),
        }
        return self._write("event", ref, event)

    def _order(self, guest: Entity) -> Record:
        country, currency = self._random.choice(COUNTRIES)
        items = [self._item() for _ in range(self._random.randint(1, 4))]
        order = {
            "ref": self._ref("order"),
            "guestRef": guest["ref"],
            "status": "PLACED",
            "currency": currency,
            "country": country,
            "total": _total(items),
            "items": items,
            "createdAt": self._time(),
            "modifiedAt": self._time(),
        }
        self._orders.append(order)
        if len(self._orders) > 2000:
            del self._orders[:500]  # old orders are left alone
        return self._write("order", guest["ref"], order)

    def _change_order(self, at: int) -> Record:
        order = self._orders[at]
        chance = self._random.random()
        if chance < 0.15:
            change: dict[str, Any] = {"status": "CANCELLED"}
        elif chance < 0.30:
            items = [*order["items"], self._item()]
            change = {"items": items, "total": _total(items)}
        elif chance < 0.35:
            change = {"country": self._random.choice(COUNTRIES)[0]}
        else:
            change = {"status": NEXT_STATUS.get(order["status"], order["status"])}
        changed = {**order, **change, "modifiedAt": self._time()}
        self._orders[at] = changed
        return self._write("order", order["guestRef"], changed, order)

    def _delete_order(self, at: int) -> Record:
        order = self._orders.pop(at)
        return self._write("order", order["guestRef"], None, order)

    def _item(self) -> Entity:
        sku, price = self._random.choice(SKUS)
        return {"sku": sku, "quantity": self._random.randint(1, 5), "unitPrice": price}

    def _break(self) -> Record:
        """A record that is broken in one of the ways seen in the field; some are tombstones."""
        key = f"{self._seed}-broken-{self._random.randrange(50)}".encode()
        values = [b"{", b"\xff\xfe\x00", b"[1, 2]", b'{"provenance": {}}', b'{"a": NaN}', None, b""]
        topic = topic_of(self._random.choice(("guest", "session", "order", "event")))
        return Record(topic, key, self._random.choice(values))

    def _write(self, entity: str, guest: str, current: Entity | None, original: Entity | None = None) -> Record:
        self._number += 1
        self.made[entity] += 1
        made = envelope(SERVICE, f"{self._seed}-{self._number}", current, original)
        record = Record(topic_of(entity), guest.encode(), encode(made))
        (valid,) = checked([record], _refuse)
        return valid

    def _ref(self, kind: str) -> str:
        return f"{kind}-{self._seed}-{self._number + 1}"

    def _time(self) -> str:
        return timestamp(self._now)


def _refuse(record: Record, reason: str) -> None:
    raise TerminalError(f"the simulated shop made a record for {record.topic} that is not valid: {reason}")


def _total(items: list[Entity]) -> Decimal:
    return sum((item["unitPrice"] * item["quantity"] for item in items), Decimal(0))


def _parsed(start: str | None) -> datetime:
    if start is None:
        return datetime.now(UTC)
    try:
        parsed = datetime.fromisoformat(start)
    except ValueError as error:
        raise TerminalError(f"--start {start!r} is not a time in ISO 8601, for example 2026-01-31T12:00:00") from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
