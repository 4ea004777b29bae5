"""What has to be known before Spark's JVM starts. Not in the session's module: infra writes it without PySpark."""

import importlib.util
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from runtime.settings import Settings


def spark_home() -> Path:
    """Where PySpark has its Spark. Does not import it."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def submit_conf(settings: Settings, driver_memory: str) -> dict[str, str]:
    """Configuration for ``spark-defaults.conf``, or for a session that starts its own JVM. Holds no secret.

    Spark's own jars are named with ours: the archive of classes holds for a class path that begins as it did when that
    was made, and Spark would put its directory of configuration between them.
    """
    jars = str(settings.spark.jars / "*")
    options = f"-Duser.timezone=UTC -XX:+UseParallelGC {settings.spark.java_options}".strip()
    if settings.spark.classes:  # a JVM that may not use them says nothing and reads the jars
        options += f" -XX:SharedArchiveFile={settings.spark.classes} -Xlog:cds=off -Xlog:cds+dynamic=off"
    conf = {
        "spark.driver.memory": driver_memory,
        "spark.driver.extraClassPath": os.pathsep.join([jars, str(spark_home() / "jars" / "*")]),
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraClassPath": jars,
    }
    if is_local(settings):
        here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        return conf | here | {"spark.authenticate": "true"}  # a driver listens, and others are on this machine too
    conf |= {"spark.executor.memory": settings.spark.executor_memory}
    if settings.spark.master.startswith("spark://"):  # a driver has more networks than one: executors ask for its name
        conf |= {"spark.driver.host": socket.gethostname(), "spark.driver.bindAddress": "0.0.0.0"}
    return conf


def cluster_conf(settings: Settings) -> dict[str, str]:
    """What master, workers, drivers and executors of a cluster have in common: they talk to nobody who has not their
    secret, and so that others cannot read it. Holds the secret: for files of ``SPARK_CONF_DIR``. Nothing without one,
    as where a cluster is somebody else's."""
    secret = settings.spark.secret.get_secret_value()
    if is_local(settings) or not secret:
        return {}
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
        "spark.ui.killEnabled": "false",
    }


def defaults(conf: Mapping[str, str]) -> str:
    """A ``spark-defaults.conf``."""
    return "".join(f"{key} {value}\n" for key, value in conf.items())


def is_local(settings: Settings) -> bool:
    """Whether Spark runs in the driver's own process."""
    return settings.spark.master.startswith("local")
