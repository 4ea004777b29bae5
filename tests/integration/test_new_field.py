"""A field is added while old and new producers write at once: every record is a change, every view exact."""

import json
import threading
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from batch.archive_table import add_fields, lacks_fields
from changelog.archive.columnar import earlier_fields
from changelog.envelope import encode, envelope
from changelog.producer import ChangelogProducer, Record
from runtime.errors import ContractError
from runtime.settings import Settings
from tests.services import assert_exact, assert_verified, batch, query, read_log

pytestmark = pytest.mark.integration

SERVICES = ("old-till", "new-till")
PRICE = 2.5


def write(settings: Settings, service: str, both: threading.Barrier) -> None:
    """One producer of a release: versions of orders of its own; the new one knows fields that the schema does not."""
    with ChangelogProducer(settings) as producer:
        both.wait()
        for number in range(100):
            ref, before = f"{service}-{number}", None
            for status in ("PLACED", "PAID"):
                order: dict[str, Any] = {
                    "ref": ref, "guestRef": f"g-{number}", "status": status, "currency": "GBP", "total": number + 0.5,
                    "items": [{"sku": "a", "quantity": 1, "unitPrice": PRICE}], "createdAt": "2026-02-02T10:00:00.000Z",
                    "modifiedAt": "2026-02-02T10:00:00.000Z",
                }  # fmt: skip
                if service == "new-till":
                    order["giftNote"] = None if number % 3 == 0 else {"text": "happy birthday", "lines": [number]}
                    order["items"][0]["giftWrap"] = True
                made = envelope(service, f"{ref}-{status}", order, before)
                producer.send(Record("changelog.order", order["guestRef"].encode(), encode(made)))
                before = order


@pytest.mark.slow
def test_an_optional_field_is_added_while_old_and_new_producers_write_at_once(
    platform: Settings, lake: SparkSession
) -> None:
    both = threading.Barrier(len(SERVICES))
    threads = [threading.Thread(target=write, args=(platform, service, both)) for service in SERVICES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_exact(platform)
    totals = "SELECT count(*), sum(total), count_if(status = 'PAID') FROM serving.order_latest WHERE ref LIKE '{}-%'"
    answers = [query(platform, totals.format(service)) for service in SERVICES]
    assert answers[0] == answers[1], "who knows a field more counts for nothing else"
    assert answers[0][0][0] == answers[0][0][2] == 100
    batch(lake, platform)
    rows = query(
        platform,
        "SELECT service_name, kind, count(*) FROM lake.archive.\"order\" WHERE service_name LIKE '%-till' "
        "GROUP BY 1, 2",
    )
    found = {service: (kind, number) for service, kind, number in rows if service in SERVICES}
    assert found == dict.fromkeys(SERVICES, ("change", 200)), "every record is a change"
    assert_exact(platform)
    assert_verified(lake, platform)


@pytest.mark.slow  # of what the test before wrote
def test_a_field_that_nobody_knows_is_kept_where_records_are_kept_whole(platform: Settings) -> None:
    kept = Counter[str]()
    for record in read_log(platform):
        said = json.loads(record.value) if record.value and b"new-till" in record.value else {}
        kept.update(said.get("current", {}).keys() & {"giftNote"})
        kept.update(f"item.{name}" for item in said.get("current", {}).get("items", ()) for name in item)
    assert kept["giftNote"] == kept["item.giftWrap"] == kept["item.sku"] == 200


def test_the_columnar_archive_takes_up_new_fields_and_refuses_other_types(lake: SparkSession) -> None:
    table = "lake.scratch.fields"
    lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.scratch")
    old = "struct<ref:string,items:array<struct<sku:string>>>"
    lake.sql(f"CREATE TABLE {table} (n int, current {old}, original {old}) USING iceberg")
    try:
        item = "named_struct('sku', 's')"
        lake.sql(f"INSERT INTO {table} SELECT 1, named_struct('ref', 'a', 'items', array({item})), NULL")
        wanted = struct("ref string, note string, items array<struct<name: string, sku: string>>")
        assert lacks_fields(lake, table, wanted)
        for _ in range(2):
            add_fields(lake, table, wanted, {0: 7, 1: 0})
        assert not lacks_fields(lake, table, wanted)
        for column in ("current", "original"):
            made = lake.table(table).schema[column].dataType.simpleString()
            assert made == "struct<ref:string,items:array<struct<sku:string,name:string>>,note:string>"
        assert earlier_fields(lake, table)[0] == {"below": {"0": 7, "1": 0}, "type": old}
        first = "current.note, current.items[0].name, current.items[0].sku"
        assert [tuple(row) for row in lake.sql(f"SELECT {first} FROM {table}").collect()] == [(None, None, "s")]
        items = "array(named_struct('name', 'n', 'sku', 't'))"
        rows = lake.sql(f"SELECT 2 AS n, named_struct('ref', 'b', 'note', 'x', 'items', {items}) AS current")
        rows.withColumn("original", rows["current"]).writeTo(table).append()
        added = lake.sql(f"SELECT {first} FROM {table} WHERE n = 2").collect()
        assert [tuple(row) for row in added] == [("x", "n", "t")]
        with pytest.raises(ContractError, match=r"current\.items\.element\.sku is string, the schema has int now"):
            lacks_fields(lake, table, struct("ref string, items array<struct<sku: int>>"))
    finally:
        lake.sql(f"DROP TABLE {table} PURGE")


def struct(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found
