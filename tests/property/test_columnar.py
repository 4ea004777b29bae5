"""A snapshot of the archive has the fields of the time when it was written; readers get those of today."""

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from changelog.archive.columnar import as_type

pytestmark = pytest.mark.property


def struct(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def test_fields_that_a_snapshot_lacks_are_null_at_every_depth(spark: SparkSession) -> None:
    has = struct("ref string, items array<struct<sku: string, price: decimal(18,4)>>, lines array<string>")
    wanted = struct(
        "note string, ref string, items array<struct<name: string, sku: string, price: decimal(18,4)>>, "
        "lines array<string>, at timestamp"
    )
    rows = [({"ref": "a", "items": [{"sku": "s"}, None], "lines": ["l"]},), ({"ref": "b"},), (None,)]
    frame = spark.createDataFrame(rows, StructType().add("current", has))
    made = frame.select(as_type(F.col("current"), has, wanted).alias("current"))
    assert made.schema["current"].dataType.simpleString() == wanted.simpleString()
    first, second, third = (row["current"] for row in made.collect())
    items = [Row(name=None, sku="s", price=None), None]
    assert first == Row(note=None, ref="a", items=items, lines=["l"], at=None)
    assert (second["ref"], second["items"]) == ("b", None)
    assert third is None, "what was absent stays absent"


def test_a_snapshot_that_has_them_all_is_read_as_it_is(spark: SparkSession) -> None:
    has = struct("ref string, items array<struct<sku: string>>")
    frame = spark.createDataFrame([({"ref": "a", "items": []},)], StructType().add("current", has))
    column = F.col("current")
    assert as_type(column, has, struct("ref string, items array<struct<sku: string>>")) is column
    assert frame.select(column).first() == Row(current=Row(ref="a", items=[]))
