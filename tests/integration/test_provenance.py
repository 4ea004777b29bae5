"""Who wrote what: the same answer wherever a record is kept, and nothing that was acknowledged is missing."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.envelope import encode, envelope
from changelog.producer import Record
from runtime.settings import Settings
from tests.services import batch, feed, query, run

pytestmark = pytest.mark.integration

Row = dict[str, Any]
GUEST = b"audited"


def audit(*options: str) -> dict[str, Any]:
    """What ``audit`` says."""
    found: dict[str, Any] = json.loads(run("audit", *options, "--json"))
    assert found["missing"] == []
    return found


def history() -> list[Record]:
    """An order placed, paid by another service, sent once more, broken and deleted, and other things of its guest."""
    placed: Row = {
        "ref": "audited-1", "guestRef": "audited", "status": "PLACED", "currency": "GBP", "total": 12.3,
        "country": None, "items": [{"sku": "a", "quantity": 1, "unitPrice": 12.3, "gift": True}], "note": "unknown",
        "createdAt": "2026-02-01T10:00:00.000Z", "modifiedAt": "2026-02-01T10:00:00.000Z",
    }  # fmt: skip
    paid = {**placed, "status": "PAID", "modifiedAt": "2026-02-01T11:00:00.000Z"}
    event = {
        "ref": "audited-e", "guestRef": "audited", "type": "VIEW", "channel": "WEB",
        "createdAt": "2026-02-01T10:00:00.000Z",
    }  # fmt: skip
    orders = [
        envelope("audit-shop", "a-1", placed),
        envelope("audit-till", "a-2", paid, placed),
        envelope("audit-till", "a-2", paid, placed),
        envelope("audit-shop", "a-3", {**paid, "status": "SENT"}, paid),
        envelope("audit-shop", "a-4", None, paid),
    ]
    return [
        *(Record("changelog.order", GUEST, encode(made)) for made in orders),
        Record("changelog.order", GUEST, None),
        Record("changelog.order", GUEST, b'{"provenance": {"serviceName": "audit-shop"'),
        Record("changelog.event", GUEST, encode(envelope("audit-site", "a-5", event))),
    ]


def kinds(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["kind"], row["change"], row["service"], row["identifier"]) for row in answer["records"]]


@pytest.mark.slow
def test_the_history_of_an_order_is_the_same_wherever_it_is_kept(platform: Settings, lake: SparkSession) -> None:
    batch(lake, platform)
    records = history()
    feed(platform, records[:2])
    questions = [("--order", "audited-1"), ("--guest", "audited"), ("--service", "audit-till"), ("--identifier", "a-4")]
    half: list[Row] = audit("--order", "audited-1")["records"]
    batch(lake, platform)
    feed(platform, records[2:])
    mixed = [audit(*question) for question in questions]
    assert [row["archived"] for row in mixed[0]["records"]] == [True, True, False, False, False]
    order, guest, service, identifier = mixed
    assert kinds(order) == [
        ("change", "create", "audit-shop", "a-1"),
        ("change", "update", "audit-till", "a-2"),
        ("duplicate", "update", "audit-till", "a-2"),
        ("bad", "update", "audit-shop", "a-3"),
        ("change", "delete", "audit-shop", "a-4"),
    ]
    places = [(row["partition"], row["offset"]) for row in order["records"]]
    assert places == sorted(places)
    assert order["records"][0]["current"] == {
        "ref": "audited-1", "guest_ref": "audited", "status": "PLACED", "currency": "GBP", "total": 12.3,
        "items": [{"sku": "a", "quantity": 1, "unit_price": 12.3}], "created_at": "2026-02-01T10:00:00.000Z",
        "modified_at": "2026-02-01T10:00:00.000Z",
    }  # fmt: skip
    assert order["records"][4]["current"] is None
    assert order["records"][4]["original"]["status"] == "PAID"
    assert "SENT" in order["records"][3]["reason"]
    assert len(guest["records"]) == len(records), "what cannot be read at all is there by its key"
    assert {row["entity"] for row in guest["records"]} == {"order", "event"}
    assert kinds(service) == kinds(order)[1:3]
    assert kinds(identifier) == kinds(order)[4:]

    batch(lake, platform)
    everything = [{**row, "archived": True} for row in order["records"]]
    assert [{**row, "archived": True} for row in half] == everything[:2]
    for question, before in zip(questions, mixed, strict=True):
        after = audit(*question)
        assert after["records"] == [{**row, "archived": True} for row in before["records"]]
        assert after["total"] == before["total"]
    assert len(audit("--guest", "audited", "--limit", "3")["records"]) == 3
    assert audit("--guest", "audited", "--limit", "3")["records"] == audit("--guest", "audited")["records"][-3:]


@pytest.mark.slow  # of what the test before wrote
def test_the_archive_says_it_in_sql_and_to_people(platform: Settings) -> None:
    rows = query(
        platform,
        "SELECT topic, kind, service_name, identifier, change, json_extract_scalar(\"current\", '$.status') "
        "FROM ops.audit WHERE entity = 'order' AND ref = 'audited-1' ORDER BY kafka_partition, kafka_offset",
    )
    assert rows[1] == ["changelog.order", "change", "audit-till", "a-2", "update", "PAID"]
    assert [row[5] for row in rows] == ["PLACED", "PAID", "PAID", "SENT", None]
    counted = dict(query(platform, "SELECT kind, count(*) FROM ops.audit GROUP BY kind"))
    kinds_ = query(
        platform,
        "SELECT kind, sum(n) FROM (" + " UNION ALL ".join(
            f'SELECT kind, count(*) AS n FROM lake.archive."{entity}" WHERE kind <> \'empty\' GROUP BY kind'
            for entity in ("guest", "session", "order", "event")
        ) + ") GROUP BY kind",
    )  # fmt: skip
    assert counted == dict(kinds_), "every record of the archive is there, once"
    shown = run("audit", "--order", "audited-1")
    assert "update: status PLACED → PAID" in shown
    assert "5 of 5; everything acknowledged" in shown
    assert "0 of 0" in run("audit", "--order", "nobody's")


def test_what_a_dead_letter_became_is_said_on_both_sides(platform: Settings, lake: SparkSession) -> None:
    shown = {row["identifier"]: row for row in audit("--service", "shop", "--guest", "guest-of-mend-1")["records"]}
    by_kind = {row["kind"]: row for row in audit("--guest", "guest-of-mend-1")["records"]}
    bad, change = by_kind["bad"], by_kind["change"]
    assert shown.keys() == {"mend-1-PLACED"}
    assert bad["replayed_to"] == f"{change['topic']}/{change['partition']}/{change['offset']}"
    assert change["dead_letter"] == f"{bad['topic']}/{bad['partition']}/{bad['offset']}"
    rows = query(
        platform, "SELECT kind, replayed_to, dead_letter FROM ops.audit WHERE guest_ref = 'guest-of-mend-1' ORDER BY 1"
    )
    assert rows == [["bad", bad["replayed_to"], None], ["change", None, change["dead_letter"]]]
