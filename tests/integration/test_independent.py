"""Every view, at several cuts, as Trino reads it from batch and speed, against DuckDB over the records themselves."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.envelope import encode, envelope, timestamp
from changelog.producer import Record
from runtime import ops, trino
from runtime.settings import Settings
from serving import sql
from serving.published import current
from serving.sql import Pin
from serving.wait import wait
from tests.independent import NEAR, SAME, differences, errors, records_below
from tests.services import batch, feed, query, read_log, shop
from views.registry import all_views, derived_views, view_named

pytestmark = pytest.mark.integration


def cuts(settings: Settings) -> Iterator[tuple[int, dict[tuple[str, int], int]]]:
    """Some epochs after the boundary with the position at which each starts."""
    ((epoch, generation),) = query(settings, "SELECT max(epoch), max(generation) FROM serving.boundary")
    rows = query(
        settings,
        f"SELECT epoch, topic, kafka_partition, start_offset FROM ops.epochs WHERE generation = {generation} AND epoch "
        f">= {epoch} ORDER BY epoch",
    )
    epochs = sorted({row[0] for row in rows})
    for number in sorted({epochs[0], epochs[len(epochs) // 3], epochs[2 * len(epochs) // 3], epochs[-1]}):
        yield number, {(topic, partition): start for at, topic, partition, start in rows if at == number}


MOMENTS = (
    "1900-02-28T23:59:59.999Z",  # no leap year
    "1969-12-31T23:59:59.999Z",
    "2024-02-29T00:00:00.000Z",
    "2026-03-29T00:59:59.999Z",  # clocks go forward in Europe
    "2026-10-25T01:00:00.000Z",  # and back
    "2026-11-30T23:45:00.000Z",
    "9999-11-30T23:59:59.999Z",
)


def difficult_moments() -> Iterator[Record]:
    """Events and orders around the ends of hours, days, months and years, and a day and a week after; late by anything,
    or in the future."""
    for moment in MOMENTS:
        at = datetime.fromisoformat(moment)
        for number, after in enumerate((0, 1, 60_000, 15 * 60_000, 3_600_000, 24 * 3_600_000, 7 * 24 * 3_600_000)):
            for guest in ("early", "late")[: 1 + number % 2]:
                about: dict[str, Any] = {"ref": f"{moment}-{number}", "guestRef": guest}
                created = {"createdAt": timestamp(at + timedelta(milliseconds=after))}
                event = {**about, **created, "type": "VIEW", "channel": "WEB", "page": f"/{number}"}
                order: dict[str, Any] = {
                    **about,
                    **created,
                    "modifiedAt": created["createdAt"],
                    "status": "PAID",
                    "currency": "GBP",
                }
                order |= {"total": number, "items": [{"sku": "s", "quantity": 1, "unitPrice": number}]}
                for entity, said in (("event", event), ("order", order)):
                    made = envelope("moments", f"{entity}-{moment}-{number}", said)
                    yield Record(f"changelog.{entity}", guest.encode(), encode(made))


def test_every_view_at_several_cuts_against_another_engine(platform: Settings, lake: SparkSession) -> None:
    assert SAME.keys() == {view.name for view in all_views()} | {view.name for view in derived_views()}
    feed(platform, [*shop(501, 600), *islice(difficult_moments(), 50)])
    batch(lake, platform)
    feed(platform, islice(difficult_moments(), 50, None))
    for seed in (502, 503, 504):
        feed(platform, shop(seed, 400))
        wait(platform)
    log = read_log(platform)
    served = trino.connect(platform)
    with ops.connect(platform) as connection:
        pins = {view.view: view.pin for view in current(connection)}
    named = {view.name: view for view in derived_views()}
    for epoch, cut in cuts(platform):
        at = {
            name: (view_named(name), Pin(pin.snapshot, pin.generation, pin.epoch, epoch, pin.table))
            for name, pin in pins.items()
        }

        def read(name: str, asked: str, at: Any = at) -> list[Any]:
            text = sql.derived(named[name], at) if name in named else sql.merged(*at[name])
            return list(trino.execute(served, asked.format(f"({text})"))[1])

        database = records_below(log, cut)
        assert differences(database, read) == dict.fromkeys(SAME, 0), f"at epoch {epoch}"
        found = errors(database, read)
        assert all(found[name] <= error for name, (_, _, error) in NEAR.items()), found
        assert len(read("alerts", "SELECT * FROM {0}")) > 0, "nothing to see"
        database.close()
