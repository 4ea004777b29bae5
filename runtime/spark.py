"""One way to make a Spark session: the lake's catalog, the locked jars, UTC, and secrets that no process list shows."""

import logging
import os
import sys
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from runtime.errors import AnabranchError
from runtime.settings import Settings
from runtime.spark_submit import is_local, submit_conf

CATALOG = "lake"


def session(settings: Settings, name: str, driver_memory: str, extra: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the Iceberg catalog ``lake``.

    ``extra`` adds or overrides configuration. A second call in one process returns the same session. Passwords and
    keys are set after the JVM has started, because Spark shows start-up configuration in its arguments. Where
    spark-submit has started the JVM, master, memory and class path are what it was told
    (:func:`runtime.spark_submit.submit_conf`).
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.daemon.module": "runtime.python_daemon",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",
        **(extra or {}),
    }
    builder: SparkSession.Builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        if is_local(settings):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(settings.spark.master)
        conf = submit_conf(settings, driver_memory) | conf
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    for key, value in lake_catalog(settings).items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}{key}", value)
    return spark


def spark_type(ddl: str) -> str:
    """A type as Spark writes it, for comparisons: ``decimal(18, 4)`` → ``decimal(18,4)``."""
    return DataType.fromDDL(ddl).simpleString()


def job(
    settings: Settings,
    name: str,
    conf: Mapping[str, str],
    work: Callable[[SparkSession], int],
    failed: int = 1,
    statuses: Mapping[type[AnabranchError], int] | None = None,
) -> int:
    """Run ``work`` as a Spark application of the batch layer and return the process's exit status.

    What ``work`` returns is the status; an error of ours goes to the log and is ``failed``, or what ``statuses`` says.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    spark = session(settings, f"anabranch-{name}", settings.batch.driver_memory, conf)
    try:
        return work(spark)
    except AnabranchError as error:
        logging.getLogger(name).error("%s", error)
        return (statuses or {}).get(type(error), failed)
    finally:
        spark.stop()


def deleting(spark: SparkSession, settings: Settings) -> SparkSession:
    """A session beside ``spark``, in the same application, in which Iceberg deletes files of the lake; in any other it
    deletes none. For statements that remove what nothing refers to, and for none that commits data."""
    other = spark.newSession()
    for key, value in lake_catalog(settings, deletes=True).items():
        other.conf.set(f"spark.sql.catalog.{CATALOG}{key}", value)
    return other


def lake_catalog(settings: Settings, deletes: bool = False) -> dict[str, str]:
    """Configuration of the Iceberg catalog, keys as suffixes of ``spark.sql.catalog.lake``. Holds secrets.

    Without ``deletes`` nothing is ever deleted: Iceberg deletes the files of a commit that it thinks has failed, and
    where only the database's answer was lost the commit is done and those files are the table.
    """
    return {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": settings.catalog.jdbc_url,
        ".jdbc.user": settings.catalog.user,
        ".jdbc.password": settings.catalog.password.get_secret_value(),
        ".jdbc.schema-version": "V1",
        ".warehouse": f"s3://{settings.s3.lake_bucket}/warehouse",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".s3.endpoint": settings.s3.endpoint,
        ".s3.path-style-access": "true",
        ".s3.access-key-id": settings.s3.access_key,
        ".s3.secret-access-key": settings.s3.secret_key.get_secret_value(),
        ".client.region": settings.s3.region,
        ".s3.delete-enabled": str(deletes).lower(),
        ".cache-enabled": "false",
        ".io.manifest.cache-enabled": "true",  # manifests never change
    }
