"""What a record of the captured stream says: Debezium's JSON → events. Pure."""

from typing import Any, NamedTuple

import orjson

from runtime.errors import ContractError


class Changed(NamedTuple):
    """A row was inserted, updated or deleted. ``order``: its place among the rows of transaction ``tx``, from 1 on.
    ``created``: it was not there before, as far as its key says."""

    table: str
    tx: int
    order: int
    created: bool
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Truncated(NamedTuple):
    """All rows of a table were deleted at once."""

    table: str
    tx: int
    order: int


class End(NamedTuple):
    """A transaction was committed. ``lsn``: where; it grows from one to the next. ``rows``: how many it had."""

    tx: int
    lsn: int
    rows: int


class Anew(NamedTuple):
    """What follows comes from another replication slot than what came before."""

    life: str


class Started(NamedTuple):
    """A snapshot begins."""


class Read(NamedTuple):
    """A row was read for the snapshot. It is older than what the stream has said of it since the snapshot began."""

    table: str
    row: dict[str, Any]


class TableRead(NamedTuple):
    """The snapshot is through with a table; ``completely`` unless it failed."""

    table: str
    completely: bool


class Completed(NamedTuple):
    """The snapshot is over."""


class Aborted(NamedTuple):
    """The snapshot was given up."""


Event = Changed | Truncated | End | Anew | Started | Read | TableRead | Completed | Aborted


def parse(topic: str, partition: int, offset: int, value: bytes | None) -> Event | None:
    """What a record says; None for what has no bearing: heartbeats, beginnings of transactions, tombstones.

    Raises ContractError, naming the record, for what cannot be understood: passed over, it would be lost.
    """
    if not value:
        return None
    try:
        record = orjson.loads(value)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        if "op" in record:
            return _row(record)
        if "status" in record:
            return _transaction(record)
        if "aggregate_type" in record:
            return _notification(record)
        if "life" in record:
            return Anew(record["life"])
        if record.keys() == {"ts_ms"}:
            return None
        raise ValueError("no such record is known")
    except (KeyError, TypeError, ValueError) as error:
        raise ContractError(
            f"{topic}/{partition}, offset {offset}: not understood ({error!r}); is Debezium of the locked version?"
        ) from error


def _row(record: dict[str, Any]) -> Event | None:
    source, op = record["source"], record["op"]
    table: str = source["table"] if source["schema"] == "public" else f"{source['schema']}.{source['table']}"
    if op == "r":
        return Read(table, record["after"])
    if op == "m":
        return None
    if op not in ("c", "u", "d", "t"):
        raise ValueError(f"op is {op!r}")
    tx, order = source["txId"], record["transaction"]["total_order"]
    if op == "t":
        return Truncated(table, tx, order)
    return Changed(table, tx, order, op == "c", record["before"], record["after"])


def _transaction(record: dict[str, Any]) -> Event | None:
    if record["status"] != "END":
        return None
    tx, _, lsn = record["id"].partition(":")
    return End(int(tx), int(lsn), record["event_count"])


def _notification(record: dict[str, Any]) -> Event | None:
    if record["aggregate_type"] != "Incremental Snapshot":
        return None
    kind, more = record["type"], record["additional_data"]
    if kind == "STARTED":
        return Started()
    if kind == "TABLE_SCAN_COMPLETED":
        table = more["scanned_collection"].rpartition(".")[2]
        return TableRead(table, more["status"] in ("SUCCEEDED", "EMPTY"))
    if kind == "COMPLETED":
        return Completed()
    if kind == "ABORTED":
        return Aborted()
    return None
