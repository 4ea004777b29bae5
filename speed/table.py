"""``speed.<pipeline>``: one table, one commit an epoch; a row concerns one view and fills that view's struct."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from runtime.errors import ContractError
from runtime.spark import CATALOG, spark_type
from speed.journal import JOURNAL
from views.algebra import Contribution

PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.parquet.compression-codec": "zstd",
    "commit.retry.num-retries": "10",
}


def table_name(pipeline: str) -> str:
    """``lake.speed.<pipeline>``."""
    return f"{CATALOG}.speed.{pipeline}"


def struct_ddl(contribution: Contribution) -> str:
    """Spark SQL type of a contribution's struct column."""
    return "struct<" + ", ".join(f"{field.name}: {field.type}" for field in contribution.fields) + ">"


def _is_shorter(has: str, wanted: str) -> bool:
    """Whether a struct lacks nothing but fields at its end. Earlier epochs say nothing of those."""
    return wanted.startswith(has.removesuffix(">") + ",")


def ensure_table(spark: SparkSession, pipeline: str, contributions: Sequence[Contribution], bucket: int) -> None:
    """Create the pipeline's table, or add the struct columns of new views, and what the journal counts since. A second
    call changes nothing.

    ``bucket``: epochs in one partition.

    Raises ContractError if the columns of a view have changed.
    """
    name = table_name(pipeline)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.speed")
    columns = ", ".join(f"{c.name} {struct_ddl(c)}" for c in contributions)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in PROPERTIES.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {name} (generation int NOT NULL, epoch bigint NOT NULL, view string NOT NULL, "
        f"{columns}) USING iceberg PARTITIONED BY (generation, truncate({bucket}, epoch)) TBLPROPERTIES ({properties})"
    )
    there = {field.name: field.dataType.simpleString() for field in spark.table(name).schema.fields}
    for contribution in contributions:
        wanted = struct_ddl(contribution)
        if contribution.name not in there:
            spark.sql(f"ALTER TABLE {name} ADD COLUMN {contribution.name} {wanted}")
        elif contribution.name == JOURNAL.name and _is_shorter(there[JOURNAL.name], spark_type(wanted)):
            known = {field.name for field in spark.table(name).schema[JOURNAL.name].dataType.fields}  # type: ignore[attr-defined]  # a struct
            for field in contribution.fields:
                if field.name not in known:
                    spark.sql(f"ALTER TABLE {name} ADD COLUMN {JOURNAL.name}.{field.name} {field.type}")
        elif there[contribution.name] != spark_type(wanted):
            raise ContractError(
                f"{name}.{contribution.name} is {there[contribution.name]}, the view has {spark_type(wanted)}: what is "
                "published reads the old columns, so a view whose columns change needs a new name"
            )
