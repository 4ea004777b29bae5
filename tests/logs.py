"""Hypothesis strategies for logs: updates, deletes, re-creations, duplicates, late events, bad records, tombstones."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.oracle import LogRecord

PARTITIONS = 2


@dataclass
class Log:
    """A log and the positions of the records that are meant to be bad."""

    records: list[LogRecord] = field(default_factory=list)
    bad: set[tuple[str, int, int]] = field(default_factory=set)
    clock: int = 1_795_305_600 * 1_000_000
    """The broker's: midnight of 2026-11-22 at the beginning, microseconds since 1970."""

    def append(self, topic: str, key: bytes | None, value: bytes | None, bad: bool = False) -> None:
        partition = (key or b"x")[-1] % PARTITIONS
        offset = sum(1 for r in self.records if (r.topic, r.partition) == (topic, partition))
        self.records.append(LogRecord(topic, partition, offset, key, value, self.clock))
        if bad:
            self.bad.add((topic, partition, offset))


TIMES = st.one_of(
    st.sampled_from(
        [
            "2026-11-21T23:59:59.999Z",
            "2026-11-22T00:00:00.000Z",
            "2024-02-29T12:30:00.000Z",
            "2026-03-29T01:30:00.000Z",
            "2026-10-25T01:59:59.999Z",
            "0001-01-01T00:00:00.000Z",
            "9999-12-31T23:59:59.999Z",
        ]
    ),
    st.sampled_from(
        [
            f"2026-11-22T{n // 60:02d}:{n % 60:02d}:{s}Z"
            for n in range(0, 100, 10)
            for s in ("00.000", "00.001", "59.999")
        ]
    ),  # sessions: pauses of about half an hour
    st.datetimes()
    .map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%S.") + f"{t.microsecond // 1000:03d}Z")
    .filter(lambda text: len(text) == 24),
)
TOTALS = st.one_of(
    st.integers(-1000, 1000), st.decimals(-10_000, 10_000, places=4).map(float), st.sampled_from([0.1, 1e9, 0.00005])
)
ORDERS = st.fixed_dictionaries({
    "status": st.sampled_from(["PLACED", "PAID", "CANCELLED"]),
    "currency": st.sampled_from(["GBP", "EUR"]),
    "country": st.sampled_from(["UK", "FR", None]),
    "total": TOTALS,
    "items": st.lists(
        st.fixed_dictionaries({"sku": st.sampled_from(["s1", "s2"]), "quantity": TOTALS, "unitPrice": TOTALS}),
        max_size=3,
    ),
    "createdAt": TIMES,
})  # fmt: skip
SESSIONS = st.fixed_dictionaries(
    {"channel": st.sampled_from(["WEB", "EMAIL"]), "startedAt": TIMES, "endedAt": st.none() | TIMES}
)
GUESTS = st.fixed_dictionaries(
    {"createdAt": TIMES, "email": st.none() | st.just("a@b"), "country": st.sampled_from(["UK", None])}
)
ENTITIES: dict[str, st.SearchStrategy[Any]] = {"order": ORDERS, "session": SESSIONS, "guest": GUESTS}
BROKEN = [
    b"{",
    b"\xff\xfe",
    b"[]",
    b'{"provenance":{}}',
    b'{"provenance":{"apiVersion":"1","serviceName":"s","identifier":"b"},"current":{"ref":5}}',
    b"[" * 3000,
    b"1e400",
]


@st.composite
def logs(draw: st.DrawFn, size: int = 40) -> Log:
    """A log that keeps the chain rule: ``original`` is always what was last said of the entity."""
    log = Log()
    entities: dict[tuple[str, str, str], dict[str, Any]] = {}
    written: list[tuple[str, bytes, bytes]] = []
    number = 0

    def write(topic: str, guest: str, current: Any, original: Any = None) -> None:
        nonlocal number
        number += 1
        envelope: dict[str, Any] = {"provenance": {"apiVersion": "1", "serviceName": "t", "identifier": f"i{number}"}}
        if current is not None:
            envelope["current"] = current
        if original is not None:
            envelope["original"] = original
        value = json.dumps(envelope).encode()
        written.append((topic, guest.encode(), value))
        log.append(topic, guest.encode(), value)

    for _ in range(draw(st.integers(1, size))):
        log.clock += draw(st.sampled_from([0, 1, 60, 60, 1800, 4200])) * 1_000_000
        kind = draw(
            st.sampled_from(["order"] * 3 + ["event"] * 3 + ["session", "guest", "delete", "copy", "bad", "tombstone"])
        )
        guest = draw(st.sampled_from(["g0", "g1", "g2"]))
        if kind in ("order", "session", "guest"):
            ref = guest if kind == "guest" else draw(st.sampled_from(["o1", "o2"]))
            before = entities.get((kind, guest, ref))
            after: dict[str, Any] = {
                "ref": ref,
                "modifiedAt": draw(TIMES),
                "unknownField": {"kept": ["and", "ignored"]},
            }
            after |= draw(ENTITIES[kind])
            if kind != "guest":
                after["guestRef"] = guest
            if before and "createdAt" in before and draw(st.booleans()):
                after["createdAt"] = before["createdAt"]
            entities[kind, guest, ref] = after
            write(f"changelog.{kind}", guest, after, before)
        elif kind == "delete" and entities:
            (entity, owner, ref), before = draw(st.sampled_from(sorted(entities.items(), key=lambda item: item[0])))
            del entities[entity, owner, ref]
            write(f"changelog.{entity}", owner, None, before)
        elif kind == "event":
            write(
                "changelog.event",
                guest,
                {
                    "ref": f"e{number}",
                    "guestRef": guest,
                    "type": draw(st.sampled_from(["VIEW", "ADD"])),
                    "channel": draw(st.sampled_from(["WEB", "MOBILE"])),
                    "page": draw(st.sampled_from(["/", "/a", None])),
                    "createdAt": draw(TIMES),
                },
            )
        elif kind == "copy" and written:
            log.append(*draw(st.sampled_from(written)))
        elif kind == "bad":
            topic = draw(st.sampled_from(["changelog.order", "changelog.event"]))
            log.append(topic, guest.encode(), draw(st.sampled_from(BROKEN)), bad=True)
        elif kind == "tombstone":
            log.append("changelog.order", guest.encode(), draw(st.sampled_from([None, b""])))
    return log
