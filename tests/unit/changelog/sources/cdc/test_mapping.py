"""Rows become entities: every digit, every time, and nothing that was not asked for."""

from decimal import Decimal
from typing import Any

import pytest

from changelog.envelope import encode, envelope
from changelog.sources.cdc.mapping import (
    ENTITY,
    KEYS,
    TABLES,
    UNAVAILABLE,
    head,
    item,
    lines,
    ref_of,
    whole,
    with_items,
)
from changelog.validation import check

pytestmark = pytest.mark.unit

TIMES = {"created_at": "2026-11-21T10:00:00.123456Z", "modified_at": "2026-11-21T10:00:00Z"}
ORDER = {
    "id": 42, "customer_id": 7, "session_id": None, "status": "PLACED", "currency": "GBP", "country": "GB",
    "total": "1234567890123.4567", **TIMES,
}  # fmt: skip
ITEM = {"order_id": 42, "line": 1, "sku": "s1", "name": None, "quantity": "2", "unit_price": "6.2500"}


def order(**columns: Any) -> dict[str, Any]:
    return with_items(head("shop-", "orders", {**ORDER, **columns}, {}), [item(ITEM, {})])


def test_an_order_and_its_items_are_one_entity_that_the_log_takes() -> None:
    made = order()
    assert made == {
        "ref": "shop-order-42", "guestRef": "shop-guest-7", "status": "PLACED", "currency": "GBP", "country": "GB",
        "total": Decimal("1234567890123.4567"), "createdAt": "2026-11-21T10:00:00.123Z",
        "modifiedAt": "2026-11-21T10:00:00.000Z",
        "items": [{"line": 1, "sku": "s1", "quantity": Decimal(2), "unitPrice": Decimal("6.2500")}],
    }  # fmt: skip
    assert check("order", b"shop-guest-7", encode(envelope("shop-database", "1", made))).reason is None


def test_money_keeps_every_digit_on_its_way_into_json() -> None:
    text = encode(envelope("shop-database", "1", order())).decode()
    assert '"total":1234567890123.4567' in text
    assert '"unitPrice":6.2500' in text


@pytest.mark.parametrize("value", ["NAN", "Infinity", "-Infinity", "twelve"])
def test_what_is_no_number_stays_what_it_is_and_the_log_refuses_it(value: str) -> None:
    made = order(total=value)
    assert made["total"] == value
    assert check("order", b"shop-guest-7", encode(envelope("s", "1", made))).reason is not None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-21T10:00:00.999999Z", "2026-11-21T10:00:00.999Z"),
        ("2026-11-21T10:00:00+02:00", "2026-11-21T08:00:00.000Z"),
        ("0044-03-15T12:00:00Z", "0044-03-15T12:00:00.000Z"),
        ("infinity", "infinity"),
        ("20266-11-21T10:00:00Z", "20266-11-21T10:00:00Z"),
    ],
)
def test_times_have_milliseconds_in_utc_and_what_is_none_is_kept(value: str, expected: str) -> None:
    assert order(created_at=value)["createdAt"] == expected


def test_a_null_is_left_out_and_a_column_that_nobody_named_too() -> None:
    made = head("shop-", "customers", {"id": 1, "first_name": None, "phone": "123", **TIMES}, {})
    assert made.keys() == {"ref", "createdAt", "modifiedAt"}


def test_a_value_that_was_not_sent_is_what_it_was_before() -> None:
    before = {"id": 1, "last_name": "x" * 5000, "email": "old", **TIMES}
    after = {"id": 1, "last_name": UNAVAILABLE, "email": "new", **TIMES}
    assert whole(before, after)["last_name"] == "x" * 5000
    assert whole(before, after)["email"] == "new"
    assert whole({**before, "last_name": UNAVAILABLE}, after)["last_name"] == UNAVAILABLE
    assert head("shop-", "customers", after, {"lastName": "as the log said"})["lastName"] == "as the log said"
    assert "lastName" not in head("shop-", "customers", after, {})
    assert item({**ITEM, "sku": UNAVAILABLE}, {"sku": "known"})["sku"] == "known"


def test_the_rows_of_an_order_can_be_told_from_it() -> None:
    items = [item({**ITEM, "line": line}, {}) for line in (3, 1, 2)]
    made = with_items({"ref": "o"}, items)
    assert [one["line"] for one in made["items"]] == [1, 2, 3]
    assert lines(made) == {one["line"]: one for one in items}
    assert lines({"items": [{"sku": "somebody else's"}]}) is None
    assert lines({"items": []}) == {}


def test_every_table_belongs_to_an_entity_and_has_a_key() -> None:
    assert ENTITY.keys() == KEYS.keys() == set(TABLES)
    assert ref_of("shop-", "order_items", ITEM) == ref_of("shop-", "orders", ORDER) == "shop-order-42"
    assert len({ref_of("shop-", table, {"id": 1, "order_id": 1}) for table in TABLES}) == 3
