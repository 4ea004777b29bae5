"""The process that forks Spark's Python workers, made cheap for tasks that last a tenth of a second.

Spark puts two zip files of pyspark and its core jar on the path of its own daemon (``pyspark.daemon``), and each task
makes Python read their directories again (``importlib.invalidate_caches``), 0.2 s; after each task garbage is collected
over everything that was ever imported, 0.1 s. Here pyspark comes from where it is installed, and what workers use is
imported once, before they are forked, and left out of garbage collection. Set by ``spark.python.daemon.module``.
"""

import gc
import importlib
import sys

USED = ("pyspark.worker", "numpy", "pandas", "pyarrow", "lmdb", "confluent_kafka")


def main() -> None:
    """Run Spark's daemon until its standard input is closed."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    for name in USED:
        importlib.import_module(name)
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
