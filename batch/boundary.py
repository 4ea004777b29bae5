"""Which position a batch run folds up to: the start of an epoch that is warm and archived."""

from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from changelog.positions import Vector, covers, from_json
from runtime.errors import ContractError
from runtime.ops import Connection
from runtime.spark import CATALOG


@dataclass(frozen=True)
class Boundary:
    """``vector`` is the position at which ``epoch`` of ``generation`` starts, which has taken in ``erasures``."""

    generation: int
    epoch: int
    vector: Vector
    erasures: int = 0


def choose(
    spark: SparkSession, ops: Connection, pipeline: str, archived: Vector, code: str | None = None, erasures: int = 0
) -> Boundary | None:
    """The largest warm epoch, of the newest generation that has one, whose start is archived; None if there is none.

    One past the last epoch is allowed: it starts where the last one ended. ``code``: only generations of this code;
    both sides of what is served have to be folded by the same. ``erasures``: only generations that have taken in these,
    so that nobody comes back. Raises ContractError if there is none of it.
    """
    if not archived:
        return None
    generations = ops.execute(
        "SELECT generation, start_vector, warm_vector, code_version, erasures FROM generations WHERE pipeline = %s "
        "ORDER BY generation DESC",
        (pipeline,),
    ).fetchall()
    if code and generations and code not in {row["code_version"] for row in generations}:
        raise ContractError(
            f"this is code {code}, and the speed layer runs {generations[0]['code_version']}: both sides of a view "
            "have to be folded by the same. Begin a generation of this code: anabranch generation new"
        )
    for row in generations:
        if (code and row["code_version"] != code) or row["erasures"] < erasures:
            continue
        start, warm = from_json(row["start_vector"]), from_json(row["warm_vector"])
        found = _largest(spark, pipeline, row["generation"], start, warm, archived)
        if found is not None:
            return replace(found, erasures=row["erasures"])
    return None


def _largest(
    spark: SparkSession, pipeline: str, generation: int, start: Vector, warm: Vector, archived: Vector
) -> Boundary | None:
    journal = (
        spark.table(f"{CATALOG}.speed.{pipeline}")
        .where((F.col("generation") == generation) & (F.col("view") == "journal"))
        .select("epoch", "journal.topic", "journal.kafka_partition", "journal.start_offset", "journal.end_offset")
    )
    limits = " UNION ALL ".join(
        f"SELECT '{topic}' AS topic, {partition} AS kafka_partition, {warm[topic][partition]} AS warm, "
        f"{offset} AS archived"
        for topic, partitions in archived.items()
        for partition, offset in partitions.items()
    )
    last = journal.agg(F.max("epoch")).first()
    if last is None or last[0] is None:
        fits = covers(archived, start) and covers(start, warm)
        return Boundary(generation, 0, start) if fits else None
    ends = journal.where(F.col("epoch") == last[0]).withColumn("epoch", F.col("epoch") + 1)
    starts = journal.union(ends.withColumn("start_offset", F.col("end_offset")))
    fitting = (
        starts.join(F.broadcast(spark.sql(limits)), ["topic", "kafka_partition"])
        .groupBy("epoch")
        .agg(F.expr("bool_and(start_offset >= warm AND start_offset <= archived)").alias("fits"))
        .where("fits")
        .agg(F.max("epoch"))
        .first()
    )
    if fitting is None or fitting[0] is None:
        return None
    epoch = int(fitting[0])
    vector: Vector = {}
    for row in starts.where(F.col("epoch") == epoch).collect():
        vector.setdefault(row["topic"], {})[row["kafka_partition"]] = row["start_offset"]
    return Boundary(generation, epoch, vector)
