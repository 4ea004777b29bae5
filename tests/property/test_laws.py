"""The laws of the fold, for each kind of view: parts add up to the whole, and the whole is what plain Python says."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from changelog.classify import CHANGE, CLASSIFIED_DDL, DUPLICATE, RECORD_DDL, classify
from changelog.typed import typed
from tests.logs import PARTITIONS, Log, logs
from tests.oracle import LogRecord, Oracle
from views.algebra import deferring
from views.fold import Fold, combine, weighted
from views.matching import folding, match_rows, matched, matching, progress_of, sides
from views.registry import all_views, view_named

pytestmark = pytest.mark.property

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: an example costs Spark a second, and shrinking asks for hundreds."""

READS: dict[str, tuple[str, Callable[[Oracle], set[str]]]] = {
    "order_latest": (
        "concat_ws('|', guest_ref, ref, status, coalesce(country, '-'), currency, total)",
        lambda oracle: {"|".join([g, r, s, c or "-", cur, f"{t:f}"]) for g, r, s, c, cur, t in oracle.order_latest()},
    ),
    "revenue": (
        "concat_ws('|', unix_micros(hour), coalesce(country, '-'), currency, order_value_bucket, rows, revenue)",
        lambda oracle: {
            "|".join([_micros(h), c or "-", cur, str(b), str(n), f"{v:.4f}"])
            for h, c, cur, b, n, v in oracle.revenue_by_value()
        },
    ),
    "traffic": (
        "concat_ws('|', unix_micros(minute), type, channel, rows, "  # a small sketch says how many it has seen
        "conv(hex(concat(substring(guests, 4, 1), substring(guests, 3, 1))), 16, 10))",
        lambda oracle: {"|".join([_micros(m), t, c, str(n), str(g)]) for m, t, c, n, g in oracle.traffic()},
    ),
    "pages": (
        "concat_ws('|', unix_micros(hour), channel, top_pages_value, rows, unix_micros(first_at), "
        "unix_micros(last_at))",
        lambda oracle: {
            "|".join([_micros(h), c, p, str(n), _micros(f), _micros(t)]) for h, c, p, n, f, t in oracle.pages_by_value()
        },
    ),
    "sessions": (
        "concat_ws('|', guest_ref, unix_micros(started_at), unix_micros(ended_at), events)",
        lambda oracle: {"|".join([g, _micros(s), _micros(e), str(n)]) for g, s, e, n in oracle.sessions()},
    ),
    "guest_latest": (
        "concat_ws('|', ref, coalesce(first_name, '-'), coalesce(email, '-'), coalesce(country, '-'))",
        lambda oracle: {"|".join([r, f or "-", e or "-", c or "-"]) for r, f, e, c in oracle.guest_latest()},
    ),
    "session_latest": (
        "concat_ws('|', guest_ref, ref, channel, unix_micros(started_at), "
        "coalesce(cast(unix_micros(ended_at) AS string), '-'))",
        lambda oracle: {
            "|".join([g, r, c, _micros(s), _micros(e) if e else "-"]) for g, r, c, s, e in oracle.session_latest()
        },
    ),
    "guest_spend": (
        "concat_ws('|', guest_ref, currency, rows, total_spend)",
        lambda oracle: {"|".join([g, c, str(n), f"{v:.4f}"]) for g, c, n, v in oracle.guest_spend()},
    ),
    "product_sales": (
        "concat_ws('|', day, sku, currency, quantity, revenue)",
        lambda oracle: {"|".join([str(d), s, c, f"{q:.4f}", f"{v:.4f}"]) for d, s, c, q, v in oracle.product_sales()},
    ),
}
"""For each view: its merged states as text in Spark SQL, and the same text from the oracle."""


def _alerts(name: str, oracle: Oracle) -> set[str]:
    return {"|".join(map(str, alert)) for alert in getattr(oracle, name)()}


MATCHES: dict[str, tuple[str, Callable[[Oracle], set[str]]]] = {
    "conversion": (
        "concat_ws('|', day, type, channel, currency, rows, value)",
        lambda oracle: {
            "|".join([str(d), t, c, cur, str(n), f"{v:.4f}"]) for d, t, c, cur, n, v in oracle.conversion()
        },
    ),
    **{
        name: (
            "concat_ws('|', guest_ref, source_partition, source_offset)",
            partial(_alerts, name),
        )
        for name in ("cancellations", "cart_abandoned", "large_first_order")
    },
}
"""The same for the views of matches, which are cut by position and not dealt."""

READ = {"sessions"}
"""Views of which the text is over what people read, in SQL that Spark reads as Trino does."""


def _micros(time: datetime) -> str:
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return str((delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds)


def _frame(spark: SparkSession, records: list[LogRecord]) -> DataFrame:
    began = datetime(1970, 1, 1, tzinfo=UTC)
    rows = [(r.topic, r.partition, r.offset, began + timedelta(microseconds=r.time), r.key, r.value) for r in records]
    return spark.createDataFrame(rows, RECORD_DDL)


def _typed(spark: SparkSession, log: Log) -> DataFrame:
    classified = _frame(spark, log.records).mapInArrow(classify, CLASSIFIED_DDL)
    copies = Window.partitionBy("topic", "key", "service_name", "identifier", "kind").orderBy("kafka_offset")
    duplicate = (F.col("kind") == CHANGE) & (F.row_number().over(copies) > 1)
    return typed(classified.withColumn("kind", F.when(duplicate, DUPLICATE).otherwise(F.col("kind"))))


def _text(states: DataFrame, view: str) -> set[str]:
    expression, _ = (READS | MATCHES)[view]
    there = states.where(view_named(view).present)
    if view in READ:
        there = states.sparkSession.sql(view_named(view).read_sql("SELECT * FROM {states}"), states=states)
    rows = there.select(F.expr(expression)).collect()
    assert len({row[0] for row in rows}) == len(rows), "a key appears twice in the merged states"
    return {row[0] for row in rows}


@given(log=logs(), pieces=st.lists(st.integers(0, 2), min_size=1, max_size=7))
@settings(max_examples=12, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_add_up_to_the_whole_and_the_whole_is_the_oracle(
    spark: SparkSession, log: Log, pieces: list[int]
) -> None:
    """Deal the changes to three parts in any way, fold each, add: the same as folding at once, and as the oracle."""
    records = _typed(spark, log).persist()
    oracle = Oracle(log.records, log.bad)
    assert dict(oracle.kinds) == {row["kind"]: row["count"] for row in records.groupBy("kind").count().collect()}
    folds = folding(all_views())
    fold = Fold(view.contribution for view in folds)
    assert set(READS | MATCHES) == {view.name for view in all_views()}, "a view without a law"
    deal = F.element_at(F.array(*map(F.lit, pieces)), (F.col("kafka_offset") % len(pieces) + 1).cast("int"))
    dealt = records.withColumn("piece", deal)
    parts = [fold.reduced(fold.contributed(weighted(dealt.where(F.col("piece") == n)))) for n in range(3)]
    whole = fold.reduced(fold.contributed(weighted(records))).persist()
    union = parts[0].unionByName(parts[1]).unionByName(parts[2]).persist()
    for view in folds:
        columns = fold.columns(view.name)
        expected = READS[view.name][1](oracle)
        mine = F.col("view") == view.name
        assert _text(whole.where(mine).select(*columns), view.name) == expected
        assert _text(combine(view.contribution, union.where(mine).select(*columns)), view.name) == expected
    for frame in (records, whole, union):
        frame.unpersist()


@given(log=logs(), cut=st.integers(0, 40), epochs=st.integers(1, 3))
@settings(max_examples=6, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_incremental_slices_equal_one_full_fold(spark: SparkSession, log: Log, cut: int, epochs: int) -> None:
    """Fold below a cut, then slice by slice above it; combining at any time changes nothing."""
    records = _typed(spark, log).persist()
    oracle = Oracle(log.records, log.bad)
    folds = folding(all_views())
    fold = Fold(view.contribution for view in folds)
    bounds = [0, cut, *(cut + 3 * n for n in range(1, epochs)), 1_000_000]
    for view in folds:
        served: DataFrame | None = None
        for low, high in pairwise(bounds):
            part = records.where((F.col("kafka_offset") >= low) & (F.col("kafka_offset") < max(low, high)))
            slice_ = fold.reduced(fold.contributed(weighted(part))).where(F.col("view") == view.name)
            slice_ = slice_.select(*fold.columns(view.name))
            served = slice_ if served is None else combine(view.contribution, served.unionByName(slice_))
        assert served is not None
        assert _text(served, view.name) == READS[view.name][1](oracle)
    records.unpersist()


@given(log=logs(), cut=st.integers(0, 20))
@settings(max_examples=6, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_deferred_is_missing_above_the_boundary_and_nowhere_else(
    spark: SparkSession, log: Log, cut: int
) -> None:
    """Guest g1 is written by a batch source: batch below the cut, and speed without g1 from there on, are the log
    without what g1 did from there on; one fold of the whole that knows the cut says the same."""
    service = F.when(F.decode("key", "UTF-8") == "g1", "bulk").otherwise("shop")
    records = _typed(spark, log).withColumn("service_name", service).persist()
    oracle = Oracle([r for r in log.records if r.key != b"g1" or r.offset < cut], log.bad)
    views = folding(all_views())
    batch = Fold(view.contribution for view in views)
    speed = Fold(deferring(view.contribution, ["bulk"]) for view in views)
    whole = Fold(deferring(view.contribution, ["bulk"], unless=f"kafka_offset < {cut}") for view in views)
    below, above = (records.where(f"kafka_offset {side} {cut}") for side in ("<", ">="))
    parts = [
        fold.reduced(fold.contributed(weighted(part, ["service_name"])))
        for fold, part in ((batch, below), (speed, above), (whole, records))
    ]
    union, at_once = parts[0].unionByName(parts[1]).persist(), parts[2].persist()
    for view in views:
        expected, mine = READS[view.name][1](oracle), F.col("view") == view.name
        merged = combine(view.contribution, union.where(mine).select(*batch.columns(view.name)))
        assert _text(merged, view.name) == expected
        assert _text(at_once.where(mine).select(*whole.columns(view.name)), view.name) == expected
    for frame in (records, union, at_once):
        frame.unpersist()


@given(log=logs(), cut=st.integers(0, 20))
@settings(max_examples=6, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_matches_below_a_cut_and_those_from_it_on_are_those_of_the_whole(
    spark: SparkSession, log: Log, cut: int
) -> None:
    """The sides, in Spark, of a log with everything in it; how matches are cut in general says test_matches.py."""
    views = matching(all_views())
    records = _typed(spark, log).persist()
    oracle = Oracle(log.records, log.bad)
    topics = {topic for view in views for topic in view.topics}
    start = {topic: dict.fromkeys(range(PARTITIONS), 0) for topic in topics}
    middle = {topic: dict.fromkeys(range(PARTITIONS), cut) for topic in topics}
    rows, (before, after) = sides(records, views), progress_of(records, f"kafka_offset < {cut}", "true")
    below = matched(rows.where(F.col("kafka_offset") < cut), views, start, {}, before)
    above = matched(rows, views, middle, before, after)
    fold = Fold(view.contribution for view in views)
    states = fold.reduced(fold.contributed(match_rows(below.unionByName(above), views))).persist()
    for view in views:
        mine = states.where(F.col("view") == view.name).select(*fold.columns(view.name))
        assert _text(combine(view.contribution, mine), view.name) == MATCHES[view.name][1](oracle)
    for frame in (records, states):
        frame.unpersist()
