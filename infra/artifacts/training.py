"""``python -m infra.artifacts.training FILE``: a Spark driver that does a little of everything, so that its JVM leaves
the classes that drivers need in FILE when it ends.

It needs no service. Where one would answer, the attempt loads the classes too: nothing listens at the address it is
given.
"""

import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pydantic import SecretStr
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from runtime.settings import Settings
from runtime.spark import session

NOBODY = "127.0.0.1:9"
"""Where nothing listens."""

LOADED = (  # what would be met only where a service answers
    "org.postgresql.Driver",
    "org.apache.iceberg.jdbc.JdbcCatalog",
    "org.apache.iceberg.aws.s3.S3FileIO",
    "org.apache.iceberg.spark.source.SparkBatch",
    "org.apache.spark.sql.kafka010.KafkaMicroBatchStream",
)


def main() -> int:
    target = Path(sys.argv[1])
    settings = Settings()
    settings.spark.java_options += f" -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={target}"
    settings.s3.endpoint, settings.s3.secret_key = f"http://{NOBODY}", SecretStr("none")
    settings.catalog.port = 9
    logging.disable()
    scratch = target.parent.parent
    local = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": str(scratch / "warehouse"),
    }
    spark = session(settings, "training", "1g", local)
    spark.sparkContext.setLogLevel("OFF")
    for part in (tables, rows, stream, kafka, store):
        part(spark, scratch)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.stdin.close()  # the JVM ends by itself then, and writes the archive
    return int(gateway.proc.wait())


def rows(spark: SparkSession, _scratch: Path) -> None:
    """JSON, Arrow, windows, joins, aggregates."""
    made = spark.createDataFrame([(n % 3, f'{{"a": {n}, "b": [1.5]}}') for n in range(50)], "k int, v string")
    read = made.withColumn("j", F.from_json("v", "a bigint, b array<decimal(18, 4)>")).withColumn(
        "n", F.row_number().over(Window.partitionBy("k").orderBy("v"))
    )
    same = read.mapInArrow(lambda batches: batches, read.schema)
    same.groupBy("k").agg(F.sum("j.a"), F.max_by("v", "n"), F.collect_list("n"), F.count_distinct("v")).collect()
    same.join(F.broadcast(made.select("k").distinct()), "k").where("n > 1").orderBy("v").toPandas()


def tables(spark: SparkSession, _scratch: Path) -> None:
    """Iceberg: write, replace, branch, delete, look at, put files together."""
    name = "local.a.t"
    spark.sql(f"CREATE TABLE {name} (k int, v string, t timestamp) USING iceberg PARTITIONED BY (k)")
    made = spark.range(100).selectExpr("CAST(id % 3 AS int) k", "CAST(id AS string) v", "current_timestamp() t")
    for _ in range(2):
        made.writeTo(name).append()
    made.writeTo(name).overwritePartitions()
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH b")
    made.writeTo(f"{name}.branch_b").append()
    spark.sql(f"DELETE FROM {name} WHERE k = 1")
    spark.table(name).where("k = 2").orderBy("v").collect()
    spark.table(f"{name}.snapshots").collect()
    spark.sql("CALL local.system.rewrite_data_files(table => 'a.t')").collect()


def stream(spark: SparkSession, scratch: Path) -> None:
    """A stream that folds into a table, with a checkpoint."""

    def fold(batch: DataFrame, _epoch: int) -> None:
        batch.groupBy("value").count().selectExpr("CAST(value AS int) k", "'x' v", "current_timestamp() t").writeTo(
            "local.a.t"
        ).append()

    spark.range(50).selectExpr("id", "CAST(id % 7 AS string) value").write.json(str(scratch / "in"))
    source = spark.readStream.schema("id bigint, value string").json(str(scratch / "in"))
    writer = source.writeStream.option("checkpointLocation", str(scratch / "checkpoint")).foreachBatch(fold)
    writer.trigger(availableNow=True).start().awaitTermination()


def kafka(spark: SparkSession, _scratch: Path) -> None:
    options = {
        "kafka.bootstrap.servers": NOBODY, "subscribe": "t", "kafka.default.api.timeout.ms": "500",
        "kafka.request.timeout.ms": "400", "fetchOffset.numRetries": "0",
    }  # fmt: skip
    _in_vain(lambda: spark.read.format("kafka").options(**options).load().count())


def store(spark: SparkSession, _scratch: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    for name in LOADED:
        jvm.java.lang.Class.forName(name, True, jvm.java.lang.Thread.currentThread().getContextClassLoader())
    _in_vain(lambda: spark.sql("SHOW TABLES IN lake.a").collect())
    files = jvm.org.apache.iceberg.aws.s3.S3FileIO()
    files.initialize(
        {
            "s3.endpoint": f"http://{NOBODY}", "s3.access-key-id": "none", "s3.secret-access-key": "none",
            "s3.path-style-access": "true", "client.region": "us-east-1",
        }
    )  # fmt: skip
    _in_vain(files.newInputFile("s3://a/b").exists)


def _in_vain(work: Callable[[], object]) -> None:
    """Nobody answers: only what is loaded on the way counts."""
    with contextlib.suppress(PySparkException, Py4JJavaError):
        work()


if __name__ == "__main__":
    sys.exit(main())
