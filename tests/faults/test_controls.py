"""The checker is checked: on the real services one record is lost, doubled or altered in each place, and it says which.

What is changed is a copy: another journal, another prefix of objects, a branch of an archive table, another schema of
views. What is served stays as it is.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog.archive.secor import pack_key, partition_of, read_object
from changelog.archive.sequencefile import Writer
from runtime import trino
from runtime.settings import Settings
from runtime.spark import CATALOG
from tests.faults import checker as c
from tests.faults.journal import CHANGE, Place, digest
from tests.faults.places import Checker, Look, Objects, rows_of_archive, rows_of_view
from tests.faults.report import Report
from tests.faults.scene import Scene

pytestmark = pytest.mark.faults

SEED = 9_001
"""Of no case of the catalogue."""

WRONGS = ("lost", "doubled", "altered")


@pytest.fixture(scope="module")
def look(platform: Settings, checker: Checker, lake: SparkSession) -> Look:
    """A log that is archived and whole everywhere, as the checker says."""
    scene = Scene(platform, SEED, Report("controls", ""), checker, lambda: lake)
    scene.feed(500)
    scene.covered()
    scene.batch()
    scene.check()
    return checker.look()


def only(found: list[c.Finding], where: str, what: str, record: str) -> None:
    """There is one finding, and it names the record."""
    assert [(one.where, one.what) for one in found] == [(where, what)], found
    assert record in str(found[0])


def name_of(place: Place) -> str:
    return f"{place[0]}/{place[1]}@{place[2]}"


def orders(look: Look) -> c.Truth:
    """The truth about orders alone."""
    return replace(
        look.truth, log={place: record for place, record in look.truth.log.items() if place[0] == "changelog.order"}
    )


@pytest.mark.parametrize("wrong", WRONGS)
def test_kafka_is_found_to_have_lost_doubled_or_altered_a_record(look: Look, wrong: str) -> None:
    """The journal says that a record was acknowledged that Kafka has not, or that one was never sent that it has."""
    log = list(look.truth.log.values())
    place = next(place for place in look.journal.placed if place[0] == "changelog.order")
    if wrong == "lost":
        log = [record for record in log if c.place_of(record) != place]
    elif wrong == "doubled":
        end = 1 + max(record.offset for record in log if c.place_of(record)[:2] == place[:2])
        log.append(look.truth.log[place]._replace(offset=end))
        place = (*place[:2], end)
    else:
        log = [one._replace(value=b"{}") if c.place_of(one) == place else one for one in log]
    only(c.check_kafka(look.journal, log, look.truth.begin), c.KAFKA, wrong, name_of(place))


@pytest.fixture
def scratch(platform: Settings) -> Iterator[tuple[Objects, Objects]]:
    """The objects of orders, and a copy of them under another prefix."""
    real, copy = Objects(platform), Objects(platform, "controls")
    for key in real.listed("changelog.order"):
        copy.put(key.replace(f"{real.prefix}/", "controls/", 1), real.get(key))
    yield real, copy
    for key in copy.listed("changelog.order"):
        copy.delete(key)


@pytest.mark.parametrize("wrong", WRONGS)
def test_raw_objects_are_found_to_have_lost_doubled_or_altered_a_record(
    look: Look, scratch: tuple[Objects, Objects], wrong: str
) -> None:
    real, copy = scratch
    key = sorted(copy.listed("changelog.order"))[0]
    records = list(read_object(copy.get(key), key))
    mine = records[0]
    records = {
        "lost": records[1:], "doubled": [mine, *records], "altered": [mine._replace(value=b"{}"), *records[1:]]
    }[wrong]  # fmt: skip
    writer = Writer()
    for record in records:
        writer.append(pack_key(record.offset, record.timestamp_ms, record.key), record.value)
    copy.put(key, writer.close())
    partition = partition_of("/" + key)
    assert partition is not None
    of_orders = orders(look)
    ends = {place[:2]: 1 + place[2] for place in sorted(of_orders.log)}
    assert c.check_raw(of_orders, real.records(["changelog.order"]), ends) == []
    found = c.check_raw(of_orders, copy.records(["changelog.order"]), ends)
    only(found, c.RAW, wrong, name_of(("changelog.order", partition, mine.offset)))


WRONG_ROWS: dict[str, Callable[[str, str], str]] = {
    "lost": lambda table, where: f"DELETE FROM {table} WHERE {where}",
    "doubled": lambda table, where: f"INSERT INTO {table} SELECT * FROM {table} WHERE {where}",
    "altered": lambda table, where: f"UPDATE {table} SET identifier = 'forged' WHERE {where}",
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_the_archive_is_found_to_have_lost_doubled_or_altered_a_record(
    platform: Settings, lake: SparkSession, look: Look, wrong: str
) -> None:
    place = next(place for place, kind in look.truth.kinds.items() if kind == CHANGE and place[0] == "changelog.order")
    of_orders = orders(look)
    assert c.check_archive(of_orders, rows_of_archive(platform, "order")) == []
    lake.sql("ALTER TABLE lake.archive.order CREATE OR REPLACE BRANCH controls")
    try:
        where = f"kafka_partition = {place[1]} AND kafka_offset = {place[2]}"
        lake.sql(WRONG_ROWS[wrong]("lake.archive.order.branch_controls", where))
        found = c.check_archive(of_orders, rows_of_archive(platform, "order", "'controls'"))
    finally:
        lake.sql("ALTER TABLE lake.archive.order DROP BRANCH controls")
    only(found, c.ARCHIVE, wrong, name_of(place))


FORGED = {
    "lost": "SELECT * FROM lake.serving.{view} WHERE NOT ({key})",
    "doubled": "SELECT * FROM lake.serving.{view} UNION ALL SELECT * FROM lake.serving.{view} WHERE {key}",
    "altered": "SELECT {columns} FROM lake.serving.{view}",
}


@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize(
    ("view", "key", "measure"),
    [("order_latest", "ref", "total"), ("traffic", "to_iso8601(minute) || type || channel", "events")],
    ids=["order_latest", "traffic"],
)
def test_a_view_is_found_to_have_lost_doubled_or_altered_a_row(
    platform: Settings, lake: SparkSession, look: Look, wrong: str, view: str, key: str, measure: str
) -> None:
    engine = trino.connect(platform)
    ((one,),) = trino.execute(engine, f"SELECT {key} FROM lake.serving.{view} ORDER BY 1 LIMIT 1")[1]
    is_it = f"{key} = {trino.literal(one)}"
    names = [row[0] for row in trino.execute(engine, f"SHOW COLUMNS FROM lake.serving.{view}")[1]]
    columns = ", ".join(f"{n} + IF({is_it}, 1, 0) AS {n}" if n == measure else n for n in names)
    lake.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.controls")
    text = FORGED[wrong].format(view=view, key=is_it, columns=columns)
    trino.execute(engine, f"CREATE OR REPLACE VIEW lake.controls.{view} SECURITY INVOKER AS {text}")
    oracle = look.truth.fold()
    about = c.newest_records(look.truth, oracle).get(view)
    try:
        found = c.check_view(
            view, rows_of_view(platform, view, "controls"), getattr(oracle, view)(), c.KEYS[view], about
        )
    finally:
        trino.execute(engine, f"DROP VIEW lake.controls.{view}")
        lake.sql(f"DROP NAMESPACE {CATALOG}.controls")
    assert [(finding.where, finding.what) for finding in found] == [(view, wrong)]
    if view == "order_latest":
        assert f"|{one} from changelog.order/" in found[0].record


def test_the_whole_check_says_which_acknowledged_record_is_nowhere(
    platform: Settings, checker: Checker, look: Look, tmp_path: Path
) -> None:
    """A journal with one more line than happened, and one with one less."""
    other = tmp_path / "journal"
    shutil.copytree(checker.journal, other)
    file = next(path for path in sorted(other.iterdir()) if path.stat().st_size)
    lines = file.read_text().splitlines()
    never = max(int(line.split(", ")[1]) for line in lines if line.startswith('["s"')) + 1
    prefix = min(look.journal.prefixes).decode()
    sent = f'["s", {never}, "changelog.event", "{f"{prefix}x".encode().hex()}", "{digest(b"x")}", "bad", null, null]'
    file.write_text("\n".join([*lines, sent, f'["a", {never}, 0, 99999999]']) + "\n")
    found = Checker(platform, other).check().findings
    only(found, c.KAFKA, "lost", "changelog.event/0@99999999")
    acknowledged = {int(line.split(", ")[1]) for line in lines if line.startswith('["a"')}
    changes = {int(line.split(", ")[1]) for line in lines if line.startswith('["s"') and '"change"' in line}
    gone = min(acknowledged & changes)
    file.write_text("".join(f"{line}\n" for line in lines if not line.startswith((f'["s", {gone},', f'["a", {gone},'))))
    found = Checker(platform, other).check().findings
    assert [(one.where, one.what) for one in found] in ([(c.KAFKA, "extra")], [(c.KAFKA, "doubled")]), found
