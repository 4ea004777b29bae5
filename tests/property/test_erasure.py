"""The law of erasure: folding a log from which somebody is erased is folding the log without him, in every view, by
every way on which a record comes to a fold; and whoever is not erased keeps every row."""

from functools import reduce

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from changelog.archive.columnar import without
from changelog.archive.rewrite import without as without_in_object
from changelog.archive.secor import pack_key, read_object
from changelog.archive.sequencefile import Writer
from changelog.classify import BAD, CHANGE, CLASSIFIED_DDL, ERASED, classifier
from changelog.duplicates import mark_duplicates
from changelog.envelope import encode, envelope
from changelog.erased import NOBODY, Erased
from changelog.typed import typed
from runtime.settings import ENTITIES, topic_of
from tests.logs import PARTITIONS, Log, logs
from tests.oracle import LogRecord, Oracle
from tests.property.test_laws import MATCHES, PHASES, READS, _frame, _text
from tests.unit.changelog.test_erased import erased
from views.algebra import View
from views.fold import Fold, weighted
from views.matching import folding, match_rows, matched, matching, progress_of, sides
from views.registry import all_views

pytestmark = pytest.mark.property


NAME = "raw/changelog.order/dt=2026-11-22/hr=00/1_0_00000000000000000000.deflate"


def left(log: Log, guests: set[str]) -> Oracle:
    """The oracle of a log in which nothing is left of some guests but places and times."""
    keys = {guest.encode() for guest in guests}
    bare = [r._replace(key=None, value=None) if r.key in keys else r for r in log.records]
    return Oracle(bare, log.bad)


def judged(spark: SparkSession, records: list[LogRecord], who: Erased) -> DataFrame:
    """As the speed layer, ``verify`` and ingest judge them."""
    return typed(mark_duplicates(_frame(spark, records).mapInArrow(classifier(who), CLASSIFIED_DDL)))


def archived(spark: SparkSession, records: list[LogRecord], who: Erased) -> DataFrame:
    """As a build reads an archive that was ingested before the erasure, and not rewritten yet."""
    whole = judged(spark, records, NOBODY)
    whole = whole.withColumn("value", F.when(F.col("kind") != CHANGE, F.col("value")))
    tables = [without(whole.where(F.col("topic") == topic_of(entity)), entity, who) for entity in ENTITIES]
    return reduce(DataFrame.unionByName, tables)


def rewritten(spark: SparkSession, records: list[LogRecord], who: Erased) -> DataFrame:
    """As a recompute reads raw objects that were rewritten; nobody has to know any more who it was."""
    kept = []
    for topic in sorted({record.topic for record in records}):
        for partition in range(PARTITIONS):
            mine = [r for r in records if (r.topic, r.partition) == (topic, partition)]
            writer = Writer()
            for record in mine:
                writer.append(pack_key(record.offset, record.time // 1000, record.key), record.value or b"")
            data = writer.close()
            data, *_ = without_in_object(data, NAME, topic.removeprefix("changelog."), who)
            for found, before in zip(read_object(data, NAME), mine, strict=True):
                assert (found.offset, found.timestamp_ms) == (before.offset, before.time // 1000)
                kept.append(before._replace(key=found.key, value=found.value))
    return judged(spark, kept, NOBODY)


WAYS = {"judged": judged, "archived": archived, "rewritten": rewritten}


def folded(records: DataFrame) -> dict[str, set[str]]:
    """Every view, folded from nothing, as text."""
    views: list[View] = list(all_views())
    joins = matching(views)
    fold, matches = (Fold(view.contribution for view in some) for some in (folding(views), joins))
    start = {topic: dict.fromkeys(range(PARTITIONS), 0) for view in joins for topic in view.topics}
    found = matched(sides(records, joins), joins, start, {}, progress_of(records, "true")[0])
    states = {
        **{view.name: (fold, fold.reduced(fold.contributed(weighted(records)))) for view in folding(views)},
        **{view.name: (matches, matches.reduced(matches.contributed(match_rows(found, joins)))) for view in joins},
    }
    return {
        name: _text(rows.where(F.col("view") == name).select(*of.columns(name)), name)
        for name, (of, rows) in states.items()
    }


def late_update() -> Log:
    """An order of which a version comes after everything else of its guest is erased: nothing may be taken back."""
    log = Log()
    for number, (original, current) in enumerate([(None, 5), (5, 7), (7, 9)]):
        order = {"ref": "o", "guestRef": "g0", "status": "PAID", "currency": "GBP", "items": [], "createdAt": TIME,
                 "modifiedAt": TIME}  # fmt: skip
        made = envelope(
            "t", str(number), {**order, "total": current}, {**order, "total": original} if original else None
        )
        log.append("changelog.order", b"g0", encode(made))
    return log


TIME = "2026-11-22T00:00:00.000Z"


@given(log=logs(), guests=st.sets(st.sampled_from(["g0", "g1", "g2"]), min_size=1, max_size=2))
@example(log=late_update(), guests={"g0"})
@settings(max_examples=2, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("way", WAYS)
def test_a_log_without_a_guest_folds_to_what_it_would_be_had_he_never_been(
    spark: SparkSession, log: Log, guests: set[str], way: str
) -> None:
    oracle = left(log, guests)
    records = WAYS[way](spark, log.records, erased(*sorted(guests))).persist()
    kinds = {row["kind"]: row["count"] for row in records.groupBy("kind").count().collect()}
    gone = sum(1 for r in log.records if r.key is not None and r.key.decode() in guests)
    assert kinds.pop(ERASED, 0) == gone
    expected = {kind: number for kind, number in oracle.kinds.items() if number}
    expected["tombstone"] = expected.get("tombstone", 0) - gone  # the oracle has them among these
    assert kinds == {kind: number for kind, number in expected.items() if number}
    for name, rows in folded(records).items():
        assert rows == (READS | MATCHES)[name][1](oracle), name
    records.unpersist()


WHO = 'Zoë/"17"Z'
NAMING = (
    '{"guestRef": "Zo\\u00eb/\\"17\\"Z", "cut', '{"a": "Zo\\u00EB\\/\\u002217\\u0022Z"', f"of {WHO}.",
    '{"payload": "{\\"guestRef\\": \\"Zo\\\\u00eb/\\\\\\"17\\\\\\"Z\\"}"', '{"email": "\\u0061nn@x.org"',
    '{"guestRef": "g1"', '{"guestRef": "\\u0067\\u0031"', '{"guestRef": g1',
)  # fmt: skip
OTHERS = (
    '{"guestRef": "Zo\\u00eb/171', '{"email": "jo.ann@x.org"', '{"email": "ann@x.org.uk"', '{"guestRef": "g12"',
    '{"ref": "g1", "sku": "g1"', "g1 was here", "{",
)  # fmt: skip
"""Bad records of somebody else: those that name one of the erased, and those that do not."""


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_record_of_somebody_else_that_names_a_guest_is_judged_alike_on_every_way(
    spark: SparkSession, way: str
) -> None:
    log = Log()
    for value in (*NAMING, *OTHERS):
        log.append("changelog.order", b"somebody", value.encode())
    records = WAYS[way](spark, log.records, erased(WHO, "g1", emails=("ann@x.org",)))
    kinds = {row["kafka_offset"]: row["kind"] for row in records.collect()}
    assert [kinds[offset] for offset in range(len(NAMING))] == [ERASED] * len(NAMING)
    assert [kinds[len(NAMING) + offset] for offset in range(len(OTHERS))] == [BAD] * len(OTHERS)
