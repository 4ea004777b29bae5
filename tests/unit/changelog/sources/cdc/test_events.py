"""Records as Debezium 3.7 wrote them, and what they say."""

import json
from typing import Any

import pytest

from changelog.sources.cdc.events import (
    Aborted,
    Anew,
    Changed,
    Completed,
    End,
    Event,
    Read,
    Started,
    TableRead,
    Truncated,
    parse,
)
from runtime.errors import ContractError

pytestmark = pytest.mark.unit

CUSTOMER = {
    "id": 1, "first_name": "A", "last_name": "B", "email": None, "country": "GB",
    "created_at": "2026-11-21T10:00:00.123456Z", "modified_at": "2026-11-21T10:00:00.123456Z",
}  # fmt: skip


def row(op: str, table: str = "customers", schema: str = "public", **rest: Any) -> dict[str, Any]:
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "cdc", "ts_ms": 1795298750357, "snapshot": "false",
        "db": "shop", "sequence": '[null,"26365432"]', "ts_us": 1795298750357221, "ts_ns": 1795298750357221000,
        "schema": schema, "table": table, "txId": 765, "lsn": 26365432, "xmin": None, "origin": None,
        "origin_lsn": None,
    }  # fmt: skip
    transaction = {"id": "765:26365432", "total_order": 1, "data_collection_order": 1}
    return {
        "before": None, "after": None, "source": source, "transaction": transaction, "op": op, "ts_ms": 1795298750618,
        **rest,
    }  # fmt: skip


def notified(kind: str, **more: str) -> dict[str, Any]:
    return {
        "id": "first", "type": kind, "aggregate_type": "Incremental Snapshot",
        "additional_data": {"connector_name": "cdc", "data_collections": "public.customers,public.orders", **more},
        "timestamp": 1795298750679,
    }  # fmt: skip


def read(status: str) -> dict[str, Any]:
    return notified("TABLE_SCAN_COMPLETED", scanned_collection="public.orders", status=status)


def said(record: Any) -> Event | None:
    return parse("cdc.shop", 0, 17, None if record is None else json.dumps(record).encode())


@pytest.mark.parametrize(
    ("record", "event"),
    [
        (row("c", after=CUSTOMER), Changed("customers", 765, 1, True, None, CUSTOMER)),
        (row("u", before=CUSTOMER, after=CUSTOMER), Changed("customers", 765, 1, False, CUSTOMER, CUSTOMER)),
        (row("d", before=CUSTOMER), Changed("customers", 765, 1, False, CUSTOMER, None)),
        (row("t", table="orders"), Truncated("orders", 765, 1)),
        (row("c", table="orders", schema="cdc", after={}), Changed("cdc.orders", 765, 1, True, None, {})),
        (row("r", after=CUSTOMER, transaction=None), Read("customers", CUSTOMER)),
        ({"status": "BEGIN", "id": "765:26365432", "event_count": None, "data_collections": None, "ts_ms": 1}, None),
        (
            {
                "status": "END", "id": "765:26365616", "event_count": 2, "ts_ms": 1795298750357,
                "data_collections": [{"data_collection": "public.customers", "event_count": 2}],
            },
            End(765, 26365616, 2),
        ),
        ({"status": "END", "id": "792:26422184", "event_count": 0, "data_collections": []}, End(792, 26422184, 0)),
        (notified("STARTED"), Started()),
        (notified("DATA_COLLECTIONS_RESOLVED"), None),
        (notified("IN_PROGRESS", current_collection_in_progress="public.customers"), None),
        (read("SUCCEEDED"), TableRead("orders", True)),
        (read("EMPTY"), TableRead("orders", True)),
        (read("SQL_EXCEPTION"), TableRead("orders", False)),
        (notified("COMPLETED"), Completed()),
        (notified("ABORTED"), Aborted()),
        ({**notified("SKIPPED"), "aggregate_type": "Initial Snapshot"}, None),
        ({"ts_ms": 1795298760107}, None),
        ({"life": "0a1b2c3d"}, Anew("0a1b2c3d")),
        (None, None),
    ],
)  # fmt: skip
def test_a_record_says_what_happened(record: Any, event: Event | None) -> None:
    assert said(record) == event


@pytest.mark.parametrize(
    "record",
    [
        row("x"),
        row("c", after=CUSTOMER, transaction=None),
        {"something": "else"},
        {"status": "END", "id": "765", "event_count": 1},
        [1],
        5,
    ],
)
def test_what_is_not_understood_is_not_passed_over(record: Any) -> None:
    with pytest.raises(ContractError, match="offset 17"):
        said(record)


def test_what_is_not_json_is_not_passed_over() -> None:
    with pytest.raises(ContractError, match="offset 17"):
        parse("cdc.shop", 0, 17, b"{")
