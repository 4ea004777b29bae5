"""What writers send: copies, disorder, wrong clocks, poison, and fields that nobody knew."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from changelog.envelope import encode, envelope, timestamp
from changelog.producer import Record
from infra.home import write_private
from tests.faults.cases.speed import begin_anew
from tests.faults.catalogue import fault
from tests.faults.journal import Made, shop_prefixes, shop_records
from tests.faults.scene import Scene
from tests.faults.test_kills import assert_alerts_sent_once
from tests.services import READ, query, until

LARGE = 10 * 1000 * 1000


def own(scene: Scene) -> str:
    """A prefix of guests' refs that nobody had before."""
    seed, _ = scene.fresh()
    return f"guest-{seed}-"


def event(guest: str, number: int, at: datetime, **more: Any) -> dict[str, Any]:
    """A valid event."""
    return {
        "ref": f"{guest}-e{number}", "guestRef": guest, "type": ("VIEW", "ADD", "SEARCH")[number % 3],
        "channel": "WEB", "page": f"/p/{number % 7}", "createdAt": timestamp(at), **more,
    }  # fmt: skip


def order(guest: str, number: int, status: str, total: float, created: str, modified: datetime) -> dict[str, Any]:
    """A valid order of one item."""
    return {
        "ref": f"{guest}-o{number}", "guestRef": guest, "status": status, "currency": "GBP", "country": "GB",
        "total": total, "items": [{"sku": "s", "quantity": 1, "unitPrice": total}], "createdAt": created,
        "modifiedAt": timestamp(modified),
    }  # fmt: skip


def made(guest: str, number: int, entity: str, current: dict[str, Any], original: dict[str, Any] | None = None) -> Made:
    value = encode(envelope("faults", f"{guest}-{number}", current, original))
    return Made(Record(f"changelog.{entity}", guest.encode(), value))


@fault("input.duplicates")
def duplicates(scene: Scene) -> None:
    """Everything is sent again: at once, after the views have it, after a kill, after a batch run, by another writer,
    and by a new generation's log; each counts once."""
    seed, path = scene.fresh()
    records, prefixes = list(shop_records(seed, 400)), shop_prefixes(seed)
    scene.write([one for record in records for one in (record, record)], prefixes, path)
    scene.covered()
    scene.write(records, prefixes)
    scene.kill("speed")
    scene.write(scene.random.sample(records, 200), prefixes)
    scene.check()
    scene.batch()
    scene.write(records, prefixes)
    scene.check()
    scene.batch()
    scene.check()


@contextmanager
def horizon(scene: Scene, seconds: int) -> Iterator[None]:
    """The speed layer remembers copies for so long; afterwards for as long as before."""
    path = scene.settings.home / "settings.json"
    before = path.read_text()
    written = json.loads(before)
    written["speed"] = {**written.get("speed", {}), "horizon_seconds": seconds}
    write_private(path, json.dumps(written))
    try:
        begin_anew(scene)
        yield
    finally:
        write_private(path, before)
        begin_anew(scene)


@fault("input.copies-beyond-the-horizon", alone=True, seconds=900)
def copies_beyond_the_horizon(scene: Scene) -> None:
    """Orders come again after the speed layer has forgotten them (a horizon of three seconds stands for days): they are
    counted until the boundary passes them, and not after."""
    prefix = own(scene)
    now = datetime.now(UTC)
    orders = [one for one in disordered(prefix, [now] * 60) if one.record.topic == "changelog.order"]
    created = [one for one in orders if b'"original"' not in (one.record.value or b"")]
    with horizon(scene, 3):
        scene.write(orders, [prefix])
        scene.covered()
        scene.pause(4)
        scene.write(created, [prefix])
        scene.covered()
        found = scene.checker.check().findings
        assert {one.where for one in found} <= READ.keys(), "something else than a view counts them"
        assert found, "the speed layer remembered for longer than it was told"
        scene.report.told(f"{len(created)} copies were counted until the boundary passed them")
        scene.report.acted()
        scene.batch()
        scene.check()
    scene.check()


@fault("input.copies-before-a-new-generation", alone=True, seconds=900)
def copies_before_a_new_generation(scene: Scene) -> None:
    """Two cancellations come again, and a new generation begins behind their firsts (a horizon of three seconds stands
    for days): a third cancellation is the third, in the view and in the alerts."""
    prefix = own(scene)
    guest = f"{prefix}0"

    def cancelled(number: int) -> Made:
        now = datetime.now(UTC)
        return made(guest, number, "order", order(guest, number, "CANCELLED", 1.0, timestamp(now), now))

    two = [cancelled(1), cancelled(2)]
    scene.write(two, [prefix])
    scene.pause(4)
    scene.write(two, [prefix])
    scene.covered()
    scene.batch()
    with horizon(scene, 3):
        scene.write([cancelled(3)], [prefix])
        scene.covered()
        bursts = query(scene.settings, f"SELECT guest_ref FROM serving.cancellations WHERE guest_ref = '{guest}'")
        assert bursts == [[guest]]
        scene.report.acted()
        scene.check()
        assert_alerts_sent_once(scene.settings)
    scene.check()
    assert_alerts_sent_once(scene.settings)


@fault("input.disorder")
def disorder(scene: Scene) -> None:
    """Times of events and orders lie hours, days and years before and after, in no order, and orders are changed by a
    clock that runs backwards; the speed driver is killed meanwhile."""
    prefix = own(scene)
    moments = [datetime.now(UTC) + timedelta(seconds=step) for step in skews(scene)]
    with scene.load(rate=60):
        scene.write(disordered(prefix, moments), [prefix])
        scene.kill("speed")
        scene.write(disordered(f"{prefix}x-", moments[::-1]), [prefix])
    scene.check()


def skews(scene: Scene) -> list[float]:
    """Seconds by which clocks are wrong: up to a minute, hours, days, ten years; both ways."""
    scales = (60.0, 6 * 3600.0, 5 * 86_400.0, 10 * 365 * 86_400.0)
    return [scene.random.uniform(-scale, scale) for scale in scales for _ in range(60)]


def disordered(prefix: str, moments: list[datetime]) -> Iterator[Made]:
    """Events, and orders of which every version is older than the one before."""
    newest: dict[str, dict[str, Any]] = {}
    for number, moment in enumerate(moments):
        guest = f"{prefix}{number % 5}"
        yield made(guest, number, "event", event(guest, number, moment))
        ref = f"{guest}-o{number % 3}"
        before = newest.get(ref)
        created = (before or {}).get("createdAt", timestamp(moment))
        status, modified = "PAID" if number % 4 else "CANCELLED", moment - timedelta(hours=number)
        newest[ref] = order(guest, number % 3, status, number + 0.25, created, modified)
        yield made(guest, 10_000 + number, "order", newest[ref], before)


def poison(guest: str, number: int) -> list[Made]:
    """One of each kind of record that cannot be one, and the largest that is."""
    now = datetime.now(UTC)
    good = encode(envelope("faults", f"{guest}-p{number}", event(guest, number, now)))
    whole: dict[str, Any] = json.loads(good)
    wrong: list[bytes | None] = [
        b"{", good[:-7], b"\xff\xfe\x00\x01", good.replace(b"VIEW", b"V\xffEW").replace(b"ADD", b"\xc3\x28D"),
        b"[" * 50_000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"null", b"1e999", b'"text"', b"{}",
        json.dumps({**whole, "current": {**whole["current"], "createdAt": 5}}).encode(),
        json.dumps({**whole, "current": {**whole["current"], "createdAt": "yesterday"}}).encode(),
        json.dumps({**whole, "current": {**whole["current"], "guestRef": "somebody else"}}).encode(),
        json.dumps({**whole, "provenance": {"serviceName": None}}).encode(),
        json.dumps({**whole, "original": whole["current"]}).encode(),
        json.dumps({**whole, "current": [whole["current"]]}).encode(),
        None, b"",
    ]  # fmt: skip
    wrong = [value for value in wrong if value != good]  # a kind of event that has no such text in it
    return [Made(Record("changelog.event", guest.encode(), value), bad=bool(value)) for value in wrong]


@fault("input.poison")
def poisoned(scene: Scene) -> None:
    """One record in a hundred is poison: broken JSON, wrong types, no value, bad UTF-8, deep nesting, another's key;
    the archiver and the speed driver are killed meanwhile. Good and bad are all."""
    prefix, seed = own(scene), scene.fresh()[0]
    bad = [one for number in range(3) for one in poison(f"{prefix}{number}", number)]
    good = shop_records(seed, 100 * len(bad))
    scene.report.told(f"{len(bad)} poisoned among {100 * len(bad)}")

    def mixed() -> Iterator[Made]:
        for number, one in enumerate(bad):
            for _ in range(100):
                yield next(good)
            yield one
            if number == len(bad) // 3:
                scene.kill("archiver")
            if number == len(bad) // 2:
                scene.kill("speed", then=False)

    scene.write(mixed(), [prefix, *shop_prefixes(seed)])
    until(lambda: scene.pid("speed") is not None, 60, "the driver is started again")
    scene.check()
    scene.batch()
    scene.check()


@fault("input.large")
def large(scene: Scene) -> None:
    """Records of 10 MB: a valid one with a field that nobody knows, one that is not JSON, and one too deep."""
    prefix = own(scene)
    guest = f"{prefix}0"
    now = datetime.now(UTC)
    scene.write(
        [
            made(guest, 1, "event", event(guest, 1, now, unknownField="x" * LARGE)),
            Made(Record("changelog.event", guest.encode(), b"{" + b"x" * LARGE), bad=True),
            Made(Record("changelog.order", guest.encode(), b"[" * LARGE), bad=True),
            made(guest, 2, "event", event(guest, 2, now)),
        ],
        [prefix],
    )
    scene.report.acted()
    scene.check()
    scene.batch()
    scene.check()


@fault("input.schema-changes")
def schema_changes(scene: Scene) -> None:
    """In mid-stream writers begin to send fields that nobody knows, nested ones among them, and others do not; the
    speed driver is killed between."""
    prefix = own(scene)
    now = datetime.now(UTC)

    def changing(first: int) -> Iterator[Made]:
        for number in range(first, first + 200):
            guest = f"{prefix}{number % 9}"
            new = {"device": {"kind": "phone", "os": ["x", number]}, "vat": number / 3} if number % 2 else {}
            yield made(guest, number, "event", event(guest, number, now - timedelta(minutes=number), **new))

    scene.write(changing(0), [prefix])
    scene.kill("speed")
    scene.write(changing(200), [prefix])
    scene.check()
    scene.batch()
    scene.check()
