"""Online Retail: an invoice is one order, created and then paid; a line is one event."""

import csv
import gzip
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from changelog.sources.online_retail import records
from changelog.validation import check
from runtime.errors import TerminalError
from tests.unit.changelog.shared_data import shared_data

pytestmark = pytest.mark.unit

HEADER = ["InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country"]
FIRST = ["536365", "85123A", "WHITE HEART", "6", "2010-12-01 08:26:00", "2.55", "17850.0", "United Kingdom"]
UK, TIME = "United Kingdom", "2010-12-01 08:26:00"


def packed(*lines: list[str], header: list[str] = HEADER) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([header, *lines])
    return gzip.compress(text.getvalue().encode())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "online_retail.csv.gz"


def read(path: Path) -> list[tuple[str, bytes | None, str, dict[str, Any]]]:
    """(topic, key, identifier, current) of every record."""
    found = []
    for record in records(path):
        assert record.value is not None
        made = json.loads(record.value, parse_float=Decimal)
        assert made["provenance"]["serviceName"] == "online-retail"
        found.append((record.topic, record.key, made["provenance"]["identifier"], made["current"]))
    return found


def test_invoices_become_exactly_these_records(path: Path) -> None:
    """Two invoices with their lines mixed, the one with the same line twice and without a customer."""
    path.write_bytes(
        packed(
            FIRST,
            ["C536379", "D", "Discount", "-1", "12/1/2010 9:41", "27.50", "", "France"],
            ["536365", "71053", "", "2", "2010-12-01 08:27:00", "3.393", "99999.0", "Italy"],
            ["C536379", "D", "Discount", "-1", "12/1/2010 9:41", "27.50", "", "France"],
        )
    )
    order = {
        "ref": "536365",
        "guestRef": "17850",
        "status": "PLACED",
        "currency": "GBP",
        "country": "United Kingdom",
        "total": Decimal("22.086"),
        "items": [
            {"sku": "85123A", "name": "WHITE HEART", "quantity": 6, "unitPrice": Decimal("2.55")},
            {"sku": "71053", "quantity": 2, "unitPrice": Decimal("3.393")},
        ],
        "createdAt": "2010-12-01T08:26:00.000Z",
        "modifiedAt": "2010-12-01T08:26:00.000Z",
    }
    bought = {"guestRef": "17850", "type": "PURCHASE", "channel": "WEB"}
    returned = {
        "ref": "C536379",
        "guestRef": "anon-C536379",
        "status": "PLACED",
        "currency": "GBP",
        "country": "France",
        "total": Decimal(-55),
        "items": [{"sku": "D", "name": "Discount", "quantity": -1, "unitPrice": Decimal("27.50")}] * 2,
        "createdAt": "2010-12-01T09:41:00.000Z",
        "modifiedAt": "2010-12-01T09:41:00.000Z",
    }
    cancelled = {
        "guestRef": "anon-C536379",
        "type": "CANCEL",
        "channel": "WEB",
        "sku": "D",
        "quantity": -1,
        "createdAt": "2010-12-01T09:41:00.000Z",
    }
    times = ("2010-12-01T08:26:00.000Z", "2010-12-01T08:27:00.000Z")
    first = {**bought, "ref": "536365-1", "sku": "85123A", "quantity": 6, "createdAt": times[0]}
    second = {**bought, "ref": "536365-2", "sku": "71053", "quantity": 2, "createdAt": times[1]}
    assert read(path) == [
        ("changelog.order", b"17850", "536365-placed", order),
        ("changelog.event", b"17850", "536365-1", first),
        ("changelog.event", b"17850", "536365-2", second),
        ("changelog.order", b"17850", "536365-paid", {**order, "status": "PAID"}),
        ("changelog.order", b"anon-C536379", "C536379-placed", returned),
        ("changelog.event", b"anon-C536379", "C536379-1", {**cancelled, "ref": "C536379-1"}),
        ("changelog.event", b"anon-C536379", "C536379-2", {**cancelled, "ref": "C536379-2"}),
        ("changelog.order", b"anon-C536379", "C536379-paid", {**returned, "status": "PAID"}),
    ]


def test_the_original_of_an_order_is_what_was_placed(path: Path) -> None:
    path.write_bytes(packed(FIRST))
    placed, event, paid = (json.loads(record.value or b"") for record in records(path))
    assert paid["original"] == placed["current"]
    assert "original" not in placed
    assert "original" not in event


def test_an_adjustment_is_an_order_of_its_own(path: Path) -> None:
    path.write_bytes(packed(["A563187", "B", "Adjust bad debt", "1", TIME, "-11062.06", "", UK]))
    order, event, _ = read(path)
    assert (order[1], order[3]["total"]) == (b"anon-A563187", Decimal("-11062.06"))
    assert event[3]["type"] == "PURCHASE"


def test_money_is_written_with_the_digits_of_the_file(path: Path) -> None:
    path.write_bytes(packed([*FIRST[:5], "0.1000000000000000055", *FIRST[6:]]))
    placed = next(records(path)).value or b""
    assert b'"unitPrice":0.1000000000000000055' in placed
    assert b'"total":0.6000000000000000330' in placed


def test_a_second_replay_is_made_of_the_same_records(path: Path) -> None:
    path.write_bytes(packed(FIRST, ["C1", *FIRST[1:]]))
    assert list(records(path)) == list(records(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"InvoiceNo\n", "cannot be read"),
        (gzip.compress(b""), "is not Online Retail: its columns are None"),
        (packed(FIRST[1:], header=HEADER[1:]), "is not Online Retail: its columns are"),
        (packed([*FIRST[:4], "yesterday", *FIRST[5:]]), "InvoiceDate 'yesterday' is in no form that is known"),
        pytest.param(packed(FIRST)[:-9], "cannot be read", id="cut off"),
        pytest.param(gzip.compress(",".join(HEADER).encode() + b"\n\xa3"), "online_retail.csv.gz", id="not UTF-8"),
    ],
)
def test_what_is_not_the_data_set_is_an_error_that_says_why(path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TerminalError, match=message):
        list(records(path))


@dataclass
class Totals:
    """What the whole data set amounts to."""

    kinds: Counter[str] = field(default_factory=Counter)
    refs: set[str] = field(default_factory=set)
    value: Decimal = Decimal(0)
    broken_chains: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def totals() -> Totals:
    return summed(shared_data("online-retail/online_retail.csv.gz"))


def summed(path: Path) -> Totals:
    """One pass: parses what was placed, compares its bytes with what was paid, and judges every 50th record."""
    found = Totals()
    placed = b""
    for number, record in enumerate(records(path)):
        value, entity = record.value or b"", record.topic.removeprefix("changelog.")
        if number % 50 == 0 and (reason := check(entity, record.key, value).reason):
            found.bad.append(f"{record}: {reason}")
        if entity == "event":
            found.kinds["event"] += 1
        elif b'-placed"}' in value:
            found.kinds["order created"] += 1
            placed = value.partition(b'"current":')[2][:-1]
            order = json.loads(placed, parse_float=Decimal)
            found.refs.add(order["ref"])
            found.value += order["total"]
        else:
            found.kinds["order updated"] += 1
            paid = placed.replace(b'"status":"PLACED"', b'"status":"PAID"')
            if not value.endswith(b'"current":' + paid + b',"original":' + placed + b"}"):
                found.broken_chains.append(f"{record}")
    return found


def test_the_whole_data_set_is_there(totals: Totals) -> None:
    assert totals.kinds == {"order created": 25_900, "order updated": 25_900, "event": 541_909}
    assert len(totals.refs) == 25_900


def test_the_value_of_the_whole_data_set_is_exact(totals: Totals) -> None:
    assert totals.value == Decimal("9747747.934")


def test_every_order_of_the_data_set_keeps_the_chain(totals: Totals) -> None:
    assert totals.broken_chains == []


def test_records_of_the_data_set_are_valid(totals: Totals) -> None:
    assert totals.bad == []
