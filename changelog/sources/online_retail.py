"""``replay online-retail``: the UCI Online Retail data set as changes of the shop (D. Chen, 2015, CC BY 4.0).

An invoice (also C… and A…) is one order: ref = InvoiceNo, items = its lines, total = sum of quantity x price, created
PLACED and then updated to PAID; guest = CustomerID without ".0", or ``anon-<InvoiceNo>``. Each line is one event
(PURCHASE, on C… invoices CANCEL), ref ``<InvoiceNo>-<line number in the invoice>``. Of what differs between an
invoice's lines (date, customer, country) the first counts.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from changelog.envelope import encode, envelope, timestamp
from changelog.producer import Record
from runtime.errors import TerminalError

SERVICE = "online-retail"
COLUMNS = {"InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country"}

Line = dict[str, str]


def invoices(path: Path) -> Iterator[tuple[str, list[Line]]]:
    """(InvoiceNo, its lines in the order of the file), in the order of their first lines.

    Lines of one invoice need not be adjacent. Raises TerminalError if the file is not the data set.
    """
    found: dict[str, list[Line]] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if not set(reader.fieldnames or ()) >= COLUMNS:
                raise TerminalError(f"{path} is not Online Retail: its columns are {reader.fieldnames}")
            for line in reader:
                found.setdefault(line["InvoiceNo"], []).append(line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TerminalError(f"{path} cannot be read: {error}") from error
    yield from found.items()


def records(path: Path) -> Iterator[Record]:
    """The records of the whole data set: for each invoice its order PLACED, its events, its order PAID.

    Identifiers depend on the data alone, so a second replay is made of duplicates.
    """
    for number, lines in invoices(path):
        yield from _invoice(number, lines)


def _invoice(number: str, lines: list[Line]) -> Iterator[Record]:
    first = lines[0]
    guest = first["CustomerID"].removesuffix(".0") or f"anon-{number}"
    key = guest.encode()
    time = timestamp(_time(first["InvoiceDate"]))
    items = [
        {
            "sku": line["StockCode"],
            **({"name": line["Description"]} if line["Description"] else {}),
            "quantity": int(line["Quantity"]),
            "unitPrice": Decimal(line["UnitPrice"]),
        }
        for line in lines
    ]
    total = sum((Decimal(line["UnitPrice"]) * int(line["Quantity"]) for line in lines), Decimal(0))
    placed = {
        "ref": number,
        "guestRef": guest,
        "status": "PLACED",
        "currency": "GBP",
        "country": first["Country"],
        "total": total,
        "items": items,
        "createdAt": time,
        "modifiedAt": time,
    }
    paid = {**placed, "status": "PAID"}
    yield Record("changelog.order", key, encode(envelope(SERVICE, f"{number}-placed", placed)))
    kind = "CANCEL" if number.startswith("C") else "PURCHASE"
    for n, line in enumerate(lines, 1):
        event = {
            "ref": f"{number}-{n}",
            "guestRef": guest,
            "type": kind,
            "channel": "WEB",
            "sku": line["StockCode"],
            "quantity": int(line["Quantity"]),
            "createdAt": timestamp(_time(line["InvoiceDate"])),
        }
        yield Record("changelog.event", key, encode(envelope(SERVICE, f"{number}-{n}", event)))
    yield Record("changelog.order", key, encode(envelope(SERVICE, f"{number}-paid", paid, placed)))


def _time(text: str) -> datetime:
    for form in ("%Y-%m-%d %H:%M:%S", "%m/%d/%Y %H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise TerminalError(f"InvoiceDate {text!r} is in no form that is known")
