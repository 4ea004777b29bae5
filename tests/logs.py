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

    def append(self, topic: str, key: bytes | None, value: bytes | None, bad: bool = False) -> None:
        partition = (key or b"x")[-1] % PARTITIONS
        offset = sum(1 for r in self.records if (r.topic, r.partition) == (topic, partition))
        self.records.append(LogRecord(topic, partition, offset, key, value))
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
    st.datetimes()
    .map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%S.") + f"{t.microsecond // 1000:03d}Z")
    .filter(lambda text: len(text) == 24),
)
TOTALS = st.one_of(
    st.integers(-1000, 1000), st.decimals(-10_000, 10_000, places=4).map(float), st.sampled_from([0.1, 1e9, 0.00005])
)
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
    orders: dict[tuple[str, str], dict[str, Any]] = {}
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
        kind = draw(
            st.sampled_from(["order", "order", "order", "delete", "event", "event", "copy", "bad", "tombstone"])
        )
        guest = draw(st.sampled_from(["g0", "g1", "g2"]))
        if kind == "order":
            ref = draw(st.sampled_from(["o1", "o2"]))
            before = orders.get((guest, ref))
            after: dict[str, Any] = {
                "ref": ref,
                "guestRef": guest,
                "status": draw(st.sampled_from(["PLACED", "PAID", "CANCELLED"])),
                "currency": draw(st.sampled_from(["GBP", "EUR"])),
                "country": draw(st.sampled_from(["UK", "FR", None])),
                "total": draw(TOTALS),
                "items": [],
                "createdAt": before["createdAt"] if before and draw(st.booleans()) else draw(TIMES),
                "modifiedAt": draw(TIMES),
                "unknownField": {"kept": ["and", "ignored"]},
            }
            orders[guest, ref] = after
            write("changelog.order", guest, after, before)
        elif kind == "delete" and orders:
            (owner, ref), before = draw(st.sampled_from(sorted(orders.items(), key=lambda item: item[0])))
            del orders[owner, ref]
            write("changelog.order", owner, None, before)
        elif kind == "event":
            write(
                "changelog.event",
                guest,
                {
                    "ref": f"e{number}",
                    "guestRef": guest,
                    "type": draw(st.sampled_from(["VIEW", "ADD"])),
                    "channel": draw(st.sampled_from(["WEB", "MOBILE"])),
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
