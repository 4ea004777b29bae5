"""Writers of transactions: their markers and aborted records lie between others; a transaction may stay open."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from batch.plan import Plan
from changelog.archive.position import stored_offsets
from changelog.envelope import encode, envelope
from changelog.positions import Vector, covers, from_json
from changelog.producer import ChangelogProducer, Record
from changelog.topics import acknowledged_offsets, end_offsets
from runtime.errors import TransientError
from runtime.settings import Settings
from serving.wait import wait
from tests.services import (
    assert_exact,
    assert_verified,
    batch,
    feed,
    query,
    run,
    send_in_one,
    shop,
    transactional,
    until,
)

pytestmark = pytest.mark.integration


def order(ref: str, guest: str) -> Record:
    """A new order of a guest."""
    entity: dict[str, Any] = {
        "ref": ref, "guestRef": guest, "status": "PAID", "currency": "GBP", "total": 5, "items": [],
        "createdAt": "2026-03-01T10:00:00.000Z", "modifiedAt": "2026-03-01T10:00:00.000Z",
    }  # fmt: skip
    return Record("changelog.order", guest.encode(), encode(envelope("tests", ref, entity)))


def covered_by(settings: Settings, topic: str) -> Vector:
    """The boundary of what is served, of one topic."""
    vector = from_json(json.loads(query(settings, "SELECT vector FROM serving.boundary WHERE view = 'revenue'")[0][0]))
    return {topic: vector[topic]}


@pytest.mark.slow
def test_committed_and_aborted_transactions_between_other_records(platform: Settings, lake: SparkSession) -> None:
    producer = transactional(platform, "tests-mixed")
    records, never = shop(721, 900), shop(722, 300)
    for number in range(60):
        part = records[number * 15 : number * 15 + 15]
        send_in_one(producer, never[number * 5 : number * 5 + 5], commit=False)
        if number % 3 == 0:
            feed(platform, part)
        else:
            send_in_one(producer, part)
    ends = end_offsets(platform)
    assert_exact(platform)
    batch(lake, platform)
    assert covers(covered_by(platform, "changelog.order"), {"changelog.order": ends["changelog.order"]})
    assert_exact(platform)
    assert_verified(lake, platform)
    batch(lake, platform, Plan(full=True, objects=True))
    assert_exact(platform)
    assert_verified(lake, platform)


@pytest.mark.slow
@pytest.mark.parametrize("commit", [False, True], ids=["aborted", "committed"])
def test_an_open_transaction_holds_up_what_is_behind_it_and_nothing_else(
    platform: Settings, lake: SparkSession, commit: bool
) -> None:
    name = f"open-{commit}"
    run("wait")
    producer = transactional(platform, f"tests-{name}")
    producer.begin_transaction()
    inside = order(f"{name}-inside", name)
    producer.produce(inside.topic, key=inside.key, value=inside.value)
    producer.flush(30)
    with ChangelogProducer(platform) as plain:
        plain.send(order(f"{name}-behind", name))
    ((partition, behind),) = plain.ends["changelog.order"].items()
    assert end_offsets(platform)["changelog.order"][partition] == behind - 2
    with ChangelogProducer(platform) as elsewhere:
        for number in range(40):
            elsewhere.send(order(f"{name}-{number}", f"{name}-{number}"))
    others = {p: end for p, end in elsewhere.ends["changelog.order"].items() if p != partition}
    wait(platform, {"changelog.order": others}, timeout_seconds=60)
    with pytest.raises(
        TransientError, match=rf"transaction is open in changelog.order/{partition} from offset {behind - 2}"
    ):
        wait(platform, timeout_seconds=3)
    assert "a transaction is open" in run("wait", "--timeout", "2", status=1, error=True)
    assert query(platform, f"SELECT count(*) FROM serving.order_latest WHERE guest_ref = '{name}'") == [[0]]
    batch(lake, platform)
    assert stored_offsets(platform)["changelog.order"][partition] <= behind - 2, "the archiver stands before it"
    boundary = covered_by(platform, "changelog.order")["changelog.order"]
    assert boundary[partition] == behind - 2, "it stands before what is open"
    assert all(boundary[p] >= end for p, end in others.items())
    assert_verified(lake, platform)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    until(lambda: end_offsets(platform) == acknowledged_offsets(platform), 30, "nothing is open any more")
    assert_exact(platform)
    seen = query(platform, f"SELECT ref FROM serving.order_latest WHERE guest_ref = '{name}' ORDER BY ref")
    assert seen == [[f"{name}-behind"], *([[f"{name}-inside"]] if commit else [])]
    batch(lake, platform)
    assert covered_by(platform, "changelog.order")["changelog.order"][partition] >= behind
    assert_exact(platform)
    assert_verified(lake, platform)
