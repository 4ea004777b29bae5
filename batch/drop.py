"""``drop``: tables that are made from others and can be made anew, with their files: one of the columnar archive, or
everything at a location. Nobody else may delete what is in the lake."""

import argparse
import json
import sys

from pyspark.sql import SparkSession

from batch.plan import RESERVED, SERVED_LOCATION
from runtime import trino
from runtime.errors import TerminalError
from runtime.settings import ENTITIES, Settings
from runtime.spark import CATALOG, deleting, job

ARCHIVE = tuple(f"archive.{entity}" for entity in ENTITIES)


def drop(spark: SparkSession, settings: Settings, what: str) -> list[str]:
    """Drop ``archive.<entity>``, or the tables and views of a location; returns their names. A second call finds
    nothing. Raises TerminalError for anything else, and where there is nothing of this name."""
    lake = trino.connect(settings)
    if what in ARCHIVE:
        tables, views = ([what] if spark.catalog.tableExists(f"{CATALOG}.{what}") else []), []
    elif what in RESERVED or what == SERVED_LOCATION or not what.isidentifier():
        raise TerminalError(
            f"{what!r} cannot be dropped: a table of the archive can ({', '.join(ARCHIVE)}; ingest makes it anew), and "
            "a location of runs beside what is served"
        )
    else:
        there = f"SELECT table_name, table_type FROM {CATALOG}.information_schema.tables WHERE table_schema = "
        found = trino.execute(lake, there + trino.literal(what))[1]
        tables = sorted(f"{what}.{name}" for name, kind in found if kind != "VIEW")
        views = sorted(f"{what}.{name}" for name, kind in found if kind == "VIEW")
    if not tables and not views:
        raise TerminalError(f"there is no {what} in the lake: anabranch query 'SHOW SCHEMAS FROM lake' tells what is")
    for view in views:
        trino.execute(lake, f"DROP VIEW {CATALOG}.{view}")
    for table in tables:
        deleting(spark, settings).sql(f"DROP TABLE IF EXISTS {CATALOG}.{table} PURGE")
    return [*tables, *views]


def main(argv: list[str] | None = None) -> int:
    """``drop WHAT``. Prints ``{"dropped": […]}``."""
    parser = argparse.ArgumentParser(prog="drop", description=__doc__)
    parser.add_argument("what")
    arguments = parser.parse_args(argv)
    settings = Settings()

    def work(spark: SparkSession) -> int:
        print(json.dumps({"dropped": drop(spark, settings, arguments.what)}))
        return 0

    return job(settings, "drop", {}, work)


if __name__ == "__main__":
    sys.exit(main())
