"""Which changes of a whole log are copies of an earlier one."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from changelog.classify import CHANGE, DUPLICATE, IDENTITY


def mark_duplicates(records: DataFrame) -> DataFrame:
    """Make ``duplicate`` of the kind of each change of which ``records`` has a copy at a lower offset.

    Takes and keeps any columns that include ``IDENTITY``, ``kind`` and ``kafka_offset``. ``records`` has to reach back
    to the beginning of the log, each offset once. Copies share their key and with it their partition, which is what
    lets an offset order them.
    """
    copies = Window.partitionBy(*IDENTITY, "kind").orderBy("kafka_offset")
    copied = (F.col("kind") == CHANGE) & (F.row_number().over(copies) > 1)
    return records.withColumn("kind", F.when(copied, DUPLICATE).otherwise(F.col("kind")))
