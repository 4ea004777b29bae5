"""What has to be known before Spark's JVM starts. Not in the session's module: infra writes it without PySpark."""

from runtime.settings import Settings


def submit_conf(settings: Settings, driver_memory: str) -> dict[str, str]:
    """Configuration for ``spark-defaults.conf``, or for a session that starts its own JVM. Holds no secret."""
    jars = str(settings.spark.jars / "*")
    options = f"-Duser.timezone=UTC -XX:+UseParallelGC {settings.spark.java_options}"
    conf = {
        "spark.driver.memory": driver_memory,
        "spark.driver.extraClassPath": jars,
        "spark.driver.extraJavaOptions": options.strip(),
        "spark.executor.extraClassPath": jars,
    }
    if is_local(settings):
        return conf | {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf | {"spark.executor.memory": settings.spark.executor_memory}


def is_local(settings: Settings) -> bool:
    """Whether Spark runs in the driver's own process."""
    return settings.spark.master.startswith("local")
