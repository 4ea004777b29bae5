"""From JSON text to typed columns. The types follow from the JSON Schemas; names become snake_case.

All entities share one superset struct, so that one ``from_json`` serves a stream of all topics.
"""

import re
from functools import cache
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, StringType, StructField, StructType, TimestampType

from changelog.classify import BAD, CHANGE
from changelog.validation import schema
from runtime.settings import ENTITIES

MONEY = DecimalType(18, 4)


def snake(name: str) -> str:
    """``createdAt`` → ``created_at``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@cache
def entity_type(entity: str) -> StructType:
    """The typed struct of one entity, fields in the order of its JSON Schema, names as in JSON (camelCase)."""
    whole = schema(entity)
    return _struct(whole["$defs"]["entity"], whole["$defs"])


def superset_type() -> StructType:
    """One struct with the fields of all entities, each name once. Raises ValueError if two entities disagree."""
    fields: dict[str, DataType] = {}
    for entity in ENTITIES:
        for field in entity_type(entity).fields:
            if fields.setdefault(field.name, field.dataType) != field.dataType:
                raise ValueError(f"{entity}.{field.name} has another type than the same name in another entity")
    return StructType([StructField(name, type_) for name, type_ in fields.items()])


def in_snake_case(struct: StructType) -> StructType:
    """The same struct with every field name in snake_case, at every depth."""
    return StructType([StructField(snake(field.name), _snaked(field.dataType)) for field in struct.fields])


def _snaked(type_: DataType) -> DataType:
    if isinstance(type_, StructType):
        return in_snake_case(type_)
    if isinstance(type_, ArrayType):
        return ArrayType(_snaked(type_.elementType))
    return type_


def entity_columns(entity: str, source: str) -> Column:
    """A struct of the fields of ``entity`` alone, from the superset struct column ``source``; null stays null."""
    fields = [F.col(f"{source}.{snake(field.name)}") for field in entity_type(entity).fields]
    return F.when(F.col(source).isNotNull(), F.struct(*fields))


def typed(classified: DataFrame) -> DataFrame:
    """Add ``current`` and ``original`` (superset structs in snake_case, null where absent) to classified records.

    Takes and keeps the columns of ``CLASSIFIED_DDL``. A change whose text the schema accepts and the typed reader does
    not becomes bad with a reason, so that a disagreement of the two is seen and never read as nulls.
    """
    superset = superset_type()
    envelope = StructType(
        [StructField("current", superset), StructField("original", superset), StructField("_unread", StringType())]
    )
    text = F.when(F.col("kind") == CHANGE, F.col("value").cast("string"))
    parsed = F.from_json(text, envelope, {"columnNameOfCorruptRecord": "_unread"})
    unread = F.col("_parsed._unread").isNotNull()
    snaked = in_snake_case(superset)
    return (
        classified.withColumn("_parsed", parsed)
        .withColumn("kind", F.when(unread, F.lit(BAD)).otherwise(F.col("kind")))
        .withColumn("reason", F.when(unread, F.lit("the typed reader cannot read it")).otherwise(F.col("reason")))
        .withColumn("current", F.when(~unread, F.col("_parsed.current").cast(snaked)))
        .withColumn("original", F.when(~unread, F.col("_parsed.original").cast(snaked)))
        .drop("_parsed")
    )


def _struct(node: dict[str, Any], definitions: dict[str, Any]) -> StructType:
    return StructType([StructField(name, _type(child, definitions)) for name, child in node["properties"].items()])


def _type(node: dict[str, Any], definitions: dict[str, Any]) -> DataType:
    """Spark's type of a JSON Schema node. Raises ValueError for what no column type has been agreed for."""
    if "else" in node:
        return _type(node["else"], definitions)
    if node.get("$ref") == "#/$defs/timestamp":
        return TimestampType()
    if node.get("$ref") == "#/$defs/amount":
        return MONEY
    if "$ref" in node:
        return _type(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    if node.get("type") == "array":
        return ArrayType(_type(node["items"], definitions))
    if node.get("type") == "object":
        return _struct(node, definitions)
    if "enum" in node or node.get("type") in ("string", ["string", "null"]):
        return StringType()
    raise ValueError(f"no column type for the schema {node}")
