"""An independent fold in plain Python, for the tests: reads bytes, shares no code with the views or the classifier.

It is deliberately naive: it keeps the whole current state of every entity and computes each view from that.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any, NamedTuple


class LogRecord(NamedTuple):
    """A record of the log; ``time``: the broker's, microseconds since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time: int = 0


class Change(NamedTuple):
    """A change that was folded, and where it was."""

    at: LogRecord
    guest: str
    current: dict[str, Any] | None
    original: dict[str, Any] | None


MINUTE = 60 * 1_000_000


def money(number: Decimal | int | float) -> Decimal:
    return Decimal(number).quantize(Decimal("0.0001"), ROUND_HALF_UP)


@lru_cache(1 << 18)
def when(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def bucket(amount: Decimal) -> int:
    """The bucket of a logarithmic histogram with 1 % relative error, found by walking up its bounds."""
    if amount == 0:
        return 0
    gamma = Decimal("1.01") / Decimal("0.99")
    number = int(abs(amount).ln() / gamma.ln()) - 2
    while gamma**number < abs(amount):
        number += 1
    return (1000 + number) * (1 if amount > 0 else -1)


class Oracle:
    """The state of the world after a log. ``bad``: whether the tests meant a record to be bad (by its position)."""

    def __init__(self, log: Iterable[LogRecord], bad: set[tuple[str, int, int]]) -> None:
        self.kinds: dict[str, int] = defaultdict(int)
        self.entities: dict[str, dict[tuple[str, str], Any]] = defaultdict(dict)
        self.events: list[dict[str, Any]] = []
        self.changes: dict[str, list[Change]] = defaultdict(list)
        self.reached: dict[tuple[str, int], int] = defaultdict(int)
        seen: set[tuple[str, bytes | None, str, str]] = set()
        for record in sorted(log, key=lambda r: (r.topic, r.partition, r.offset)):
            place = record.topic, record.partition
            self.reached[place] = max(self.reached[place], record.time)
            if not record.value:
                self.kinds["tombstone"] += 1
                continue
            if (record.topic, record.partition, record.offset) in bad:
                self.kinds["bad"] += 1
                continue
            envelope = json.loads(record.value, parse_float=Decimal)
            provenance = envelope["provenance"]
            identity = (record.topic, record.key, provenance["serviceName"], provenance["identifier"])
            if identity in seen:
                self.kinds["duplicate"] += 1
                continue
            seen.add(identity)
            self.kinds["change"] += 1
            self._apply(record, record.topic.removeprefix("changelog."), envelope)

    def _apply(self, record: LogRecord, entity: str, envelope: dict[str, Any]) -> None:
        current, original = envelope.get("current"), envelope.get("original")
        said: dict[str, Any] = current or original or {}
        self.changes[entity].append(
            Change(record, said["ref"] if entity == "guest" else said["guestRef"], current, original)
        )
        if entity == "event":
            self.events.append(envelope["current"])
            return
        row = current or envelope["original"]
        guest = row["ref"] if entity == "guest" else row["guestRef"]
        if current:
            self.entities[entity][guest, row["ref"]] = current
        else:
            self.entities[entity].pop((guest, row["ref"]), None)

    def guest_latest(self) -> set[tuple[Any, ...]]:
        """(ref, first_name, email, country) of every guest that is there."""
        return {
            (ref, g.get("firstName"), g.get("email"), g.get("country"))
            for (_, ref), g in self.entities["guest"].items()
        }

    def session_latest(self) -> set[tuple[Any, ...]]:
        """(guest_ref, ref, channel, started_at, ended_at) of every session that is there."""
        return {
            (guest, ref, s["channel"], when(s["startedAt"]), when(s["endedAt"]) if s.get("endedAt") else None)
            for (guest, ref), s in self.entities["session"].items()
        }

    def order_latest(self) -> set[tuple[Any, ...]]:
        """(guest_ref, ref, status, country, currency, total) of every order that is there."""
        return {
            (guest, ref, o["status"], o.get("country"), o["currency"], money(o["total"]))
            for (guest, ref), o in self.entities["order"].items()
        }

    def revenue_by_value(self) -> set[tuple[Any, ...]]:
        """(hour, country, currency, bucket of the total, orders, revenue)."""
        groups: dict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
        for order in self.entities["order"].values():
            if order["status"] != "CANCELLED":
                hour, total = when(order["createdAt"]).replace(minute=0, second=0, microsecond=0), money(order["total"])
                groups[hour, order.get("country"), order["currency"], bucket(total)].append(total)
        return {(*key, len(totals), sum(totals, Decimal(0))) for key, totals in groups.items()}

    def revenue(self) -> set[tuple[Any, ...]]:
        """(hour, country, currency, orders, revenue)."""
        groups: dict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
        for order in self.entities["order"].values():
            if order["status"] != "CANCELLED":
                hour = when(order["createdAt"]).replace(minute=0, second=0, microsecond=0)
                groups[hour, order.get("country"), order["currency"]].append(money(order["total"]))
        return {(*key, len(totals), sum(totals, Decimal(0))) for key, totals in groups.items()}

    def guest_spend(self) -> set[tuple[Any, ...]]:
        """(guest_ref, currency, orders, total_spend)."""
        groups: dict[tuple[str, str], list[Decimal]] = defaultdict(list)
        for (guest, _), order in self.entities["order"].items():
            if order["status"] != "CANCELLED":
                groups[guest, order["currency"]].append(money(order["total"]))
        return {(*key, len(totals), sum(totals, Decimal(0))) for key, totals in groups.items()}

    def product_sales(self) -> set[tuple[Any, ...]]:
        """(day, sku, currency, quantity, revenue)."""
        groups: dict[tuple[Any, ...], list[tuple[Decimal, Decimal]]] = defaultdict(list)
        for order in self.entities["order"].values():
            if order["status"] != "CANCELLED":
                for item in order["items"]:
                    quantity, price = money(item["quantity"]), money(item["unitPrice"])
                    key = (when(order["createdAt"]).date(), item["sku"], order["currency"])
                    groups[key].append((quantity, money(quantity * price)))
        return {
            (*key, sum((q for q, _ in rows), Decimal(0)), sum((v for _, v in rows), Decimal(0)))
            for key, rows in groups.items()
        }

    def traffic(self) -> set[tuple[Any, ...]]:
        """(minute, type, channel, events, guests); guests counted one by one."""
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for event in self.events:
            minute = when(event["createdAt"]).replace(second=0, microsecond=0)
            groups[minute, event["type"], event["channel"]].append(event["guestRef"])
        return {(*key, len(guests), len(set(guests))) for key, guests in groups.items()}

    def sessions(self) -> set[tuple[Any, ...]]:
        """(guest_ref, started_at, ended_at, events): a pause of half an hour or more ends a session."""
        times: dict[str, list[datetime]] = defaultdict(list)
        for event in self.events:
            times[event["guestRef"]].append(when(event["createdAt"]))
        found = set()
        for guest, moments in times.items():
            session: list[datetime] = []
            for moment in [*sorted(moments), None]:
                if session and (moment is None or moment - session[-1] >= timedelta(minutes=30)):
                    found.add((guest, session[0], session[-1], len(session)))
                    session = []
                if moment is not None:
                    session.append(moment)
        return found

    def _visits(self) -> dict[tuple[Any, ...], list[tuple[datetime, int, str]]]:
        """(hour, channel) → (time, offset, page) of every event that names a page."""
        groups: dict[tuple[Any, ...], list[tuple[datetime, int, str]]] = defaultdict(list)
        for change in self.changes["event"]:
            event = change.current or {}
            if event.get("page") is not None:
                time = when(event["createdAt"])
                hour = time.replace(minute=0, second=0, microsecond=0)
                groups[hour, event["channel"]].append((time, change.at.offset, event["page"]))
        return groups

    def pages_by_value(self) -> set[tuple[Any, ...]]:
        """(hour, channel, page, events, first, last) for every page."""
        found = set()
        for key, visits in self._visits().items():
            for page in {page for _, _, page in visits}:
                times = [time for time, _, there in visits if there == page]
                found.add((*key, page, len(times), min(times), max(times)))
        return found

    def pages(self) -> set[tuple[Any, ...]]:
        """(hour, channel, events, the ten most visited as text, first_at, last_at, first_page, last_page)."""
        found = set()
        for key, visits in self._visits().items():
            counts: dict[str, int] = defaultdict(int)
            for _, _, page in visits:
                counts[page] += 1
            top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10]
            first, last = min(visits), max(visits)
            text = ",".join(f"{page}:{number}" for page, number in top)
            found.add((*key, len(visits), text, first[0], last[0], first[2], last[2]))
        return found

    def _created(self, entity: str) -> list[Change]:
        return [change for change in self.changes[entity] if change.current and not change.original]

    def _of_guests(self, entity: str) -> dict[str, list[Change]]:
        """What was created, by guest."""
        found: dict[str, list[Change]] = defaultdict(list)
        for change in self._created(entity):
            found[change.guest].append(change)
        return found

    def conversion(self) -> set[tuple[Any, ...]]:
        """(day, type, channel, currency, orders, value): each order once for each type and channel before it."""
        groups: dict[tuple[Any, ...], list[Decimal]] = defaultdict(list)
        looked = self._of_guests("event")
        for order in self._created("order"):
            o = order.current or {}
            before = set()
            for event in looked[order.guest]:
                e = event.current or {}
                ago = when(o["createdAt"]) - when(e["createdAt"])
                if (
                    e["type"] in ("VIEW", "ADD", "CHECKOUT")
                    and timedelta(0) <= ago <= timedelta(hours=1)
                    and abs(order.at.time - event.at.time) <= 70 * MINUTE
                ):
                    before.add((e["type"], e["channel"]))
            for type_, channel in before:
                groups[when(o["createdAt"]).date(), type_, channel, o["currency"]].append(money(o["total"]))
        return {(*key, len(totals), sum(totals, Decimal(0))) for key, totals in groups.items()}

    def cart_abandoned(self) -> set[tuple[Any, ...]]:
        """(guest_ref, source_partition, source_offset) of the last thing added, if half an hour passed after it."""
        added = [change for change in self._created("event") if (change.current or {})["type"] == "ADD"]
        events, orders = self._of_guests("event"), self._of_guests("order")
        found = set()
        for one in added:
            until = one.at.time + 30 * MINUTE
            known = min(self.reached[topic, one.at.partition] for topic in ("changelog.event", "changelog.order"))
            later = [e for e in events[one.guest] if e.at.time <= until and e.at.offset > one.at.offset]
            more = [e for e in later if (e.current or {})["type"] == "ADD"]
            ordered = [o for o in orders[one.guest] if one.at.time <= o.at.time <= until]
            if known > until and not more and not ordered:
                found.add((one.guest, one.at.partition, one.at.offset))
        return found

    def cancellations(self) -> set[tuple[Any, ...]]:
        """(guest_ref, source_partition, source_offset) of every third cancellation within an hour."""
        cancelled = [
            change
            for change in self.changes["order"]
            if (change.current or {}).get("status") == "CANCELLED"
            and (change.original or {}).get("status") != "CANCELLED"
        ]
        found = set()
        for one in cancelled:
            window = [
                c
                for c in cancelled
                if c.guest == one.guest and 0 <= one.at.time - c.at.time <= 60 * MINUTE and c.at.offset <= one.at.offset
            ]
            if len(window) == 3:
                found.add((one.guest, one.at.partition, one.at.offset))
        return found

    def large_first_order(self) -> set[tuple[Any, ...]]:
        """(guest_ref, source_partition, source_offset) of the first order of 500 or more."""
        first: dict[str, LogRecord] = {}
        for order in self._created("order"):
            if money((order.current or {})["total"]) >= 500:
                first.setdefault(order.guest, order.at)
        return {(guest, at.partition, at.offset) for guest, at in first.items()}
