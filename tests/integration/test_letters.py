"""Bad records are kept whole, taken out, mended, and come back once: also twice, at once, and killed half way."""

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.envelope import encode, envelope
from changelog.producer import Record
from changelog.reader import Reader
from changelog.topics import end_offsets
from runtime import ops
from runtime.settings import Settings
from tests.faults.test_kills import points
from tests.services import assert_exact, assert_verified, batch, feed, query, run, start

pytestmark = pytest.mark.integration

Line = dict[str, Any]
TIME = "2026-02-01T10:00:00.000Z"


def order(ref: str, status: str = "PLACED", original: Line | None = None, service: str = "shop") -> Line:
    """The envelope of a version of an order of guest ``guest-of-<ref>``."""
    current = {
        "ref": ref, "guestRef": f"guest-of-{ref}", "status": status, "currency": "GBP", "total": 10, "items": [],
        "createdAt": TIME, "modifiedAt": TIME,
    }  # fmt: skip
    return envelope(service, f"{ref}-{status}", current, original)


def sent(made: Line) -> Record:
    """An order's record as it is."""
    return Record("changelog.order", made["current"]["guestRef"].encode(), encode(made))


def broken(made: Line) -> Record:
    """The same with a total that is a text, as a producer with a defect writes it."""
    return sent({**made, "current": {**made["current"], "total": "10"}})


def listed(*options: str) -> list[Line]:
    """What ``dead-letters list`` says."""
    found: list[Line] = json.loads(run("dead-letters", "list", "--json", *options))
    return found


def exported(path: Path, since: str, mend: Callable[[Line], None]) -> Path:
    """A file of the open dead letters since a time, each mended as an editor would."""
    path.unlink(missing_ok=True)
    run("dead-letters", "export", str(path), "--since", since)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        mend(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def mended(line: Line) -> None:
    """The total as a number."""
    line["envelope"]["current"]["total"] = 10


def replay(path: Path, *options: str, status: int = 0) -> Line:
    """What ``dead-letters replay`` says."""
    found: Line = json.loads(run("dead-letters", "replay", str(path), "--json", *options, status=status))
    return found


def in_log(settings: Settings, ref: str) -> list[tuple[str | None, str | None]]:
    """(identifier, dead letter) of the valid records of an order, in the order of the log, read by a plain consumer."""
    ends = end_offsets(settings, ["changelog.order"])
    found = []
    with Reader(settings, {topic: dict.fromkeys(parts, 0) for topic, parts in ends.items()}) as reader:
        for entries in reader.read_to(ends):
            for entry in entries:
                if entry.key == f"guest-of-{ref}".encode() and entry.value and b'"total":"10"' not in entry.value:
                    said = json.loads(entry.value).get("provenance", {})
                    found.append((said.get("identifier"), entry.headers.get("dead-letter")))
    return found


@pytest.fixture
def now() -> str:
    """A time before everything that a test sends, by the same clock as the broker's, which counts milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@pytest.mark.slow
def test_dead_letters_are_the_records_that_were_broken_whoever_keeps_them(
    platform: Settings, lake: SparkSession, now: str, tmp_path: Path
) -> None:
    good = order("whole")
    values = {
        b'{"provenance": {': "not JSON",
        b"\xff\xfe\x00": "not JSON",
        encode({**good, "current": {**good["current"], "status": "LOST"}}): "LOST",
        encode({"current": good["current"]}): "provenance",
        encode(good): "key b'nobody' is not the guest's ref",
    }
    for _ in range(3):
        feed(platform, [Record("changelog.order", b"nobody", value) for value in values])
    feed(platform, [Record("changelog.event", None, b"5"), Record("changelog.order", b"nobody", None), sent(good)])
    run("wait")
    found = listed("--since", now)
    assert len(found) == 3 * len(values) + 1
    assert len(listed("--since", now, "--topic", "event")) == 1
    assert {len(listed("--since", now, "--reason", reason.upper())) for reason in values.values()} == {3, 6}
    assert listed("--since", now, "--limit", "2") == found[:2]
    assert f"2 of {len(found)}" in run("dead-letters", "list", "--since", now, "--limit", "2")

    place = next(one for one in found if "LOST" in one["reason"])
    where = [place["topic"], str(place["partition"]), str(place["offset"])]
    shown = json.loads(run("dead-letters", "show", *where, "--json"))
    assert (shown["key"], json.loads(shown["value"])) == ("nobody", shown["envelope"])
    assert [kept.split(" ")[0] for kept in shown["kept"]] == ["lake.speed.main", "Kafka,"]
    batch(lake, platform)
    assert listed("--since", now) == [{**one, "archived": True} for one in found]
    shown = json.loads(run("dead-letters", "show", *where, "--json"))
    assert [kept.split(" ")[0] for kept in shown["kept"]] == ["lake.archive.order", "lake.speed.main", "Kafka,"]
    assert 'reason: schema: "LOST"' in run("dead-letters", "show", *where)
    assert "no dead letter at changelog.order/0/999999" in run(
        "dead-letters", "show", "order", "0", "999999", status=1, error=True
    )

    path = tmp_path / "letters.jsonl"
    run("dead-letters", "export", str(path), "--since", now)
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(written) == len(found)
    assert {line["value_encoding"] for line in written} == {"utf-8", "base64"}
    assert "is there already" in run("dead-letters", "export", str(path), status=1, error=True)


def test_mended_letters_come_back_once_and_what_is_still_bad_stays(
    platform: Settings, lake: SparkSession, now: str, tmp_path: Path
) -> None:
    feed(platform, [broken(order(f"mend-{n}")) for n in range(20)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    lines = path.read_text().splitlines()
    lines[4] = lines[4].replace('"total": 10', '"total": "ten"')
    path.write_text("\n".join([*lines[:10], "{", *lines[10:], lines[0]]) + "\n")
    done = run("dead-letters", "replay", str(path), status=1, error=True)
    assert f'{path}:5: refused: still bad: schema: "ten" is not of type' in done
    assert f"{path}:11: refused: not JSON" in done
    assert f"{path}:22: refused: line 1 is of the same dead letter" in done
    again = replay(path, status=1)
    assert (again["replayed"], again["already"], again["refused"]) == (0, 19, 3)
    assert_exact(platform)
    (number,) = query(platform, "SELECT count(*) FROM serving.order_latest WHERE ref LIKE 'mend-%'")
    assert number == [19]
    (left,) = listed("--since", now, "--state", "open")
    assert len(listed("--since", now, "--state", "replayed")) == 19
    path = exported(tmp_path / "rest.jsonl", now, mended)
    assert replay(path)["replayed"] == 1, "nothing was lost"
    assert listed("--since", now, "--state", "open") == []
    place = [left["topic"], str(left["partition"]), str(left["offset"])]
    shown = json.loads(run("dead-letters", "show", *place, "--json"))
    assert shown["replayed_to"].startswith("changelog.order/")
    batch(lake, platform)
    assert_exact(platform)
    assert_verified(lake, platform)


def test_two_replays_at_once_send_each_letter_once(platform: Settings, now: str, tmp_path: Path) -> None:
    feed(platform, [broken(order(f"twice-{n}")) for n in range(30)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    both = [start("dead-letters", "replay", str(path), "--json") for _ in range(2)]
    done = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], done
    said = [json.loads(out) for out, _ in done]
    assert sorted(one["replayed"] for one in said) == [0, 30]
    assert sorted(one["already"] for one in said) == [0, 30]
    assert all(len(in_log(platform, f"twice-{n}")) == 1 for n in (0, 29))
    assert_exact(platform)


@pytest.mark.parametrize("point", points("replay.produced", "replay.noted", "replay.committed"))
def test_a_replay_that_is_killed_is_taken_up_where_the_log_stands(
    platform: Settings, now: str, tmp_path: Path, point: str
) -> None:
    """The file is mended otherwise in between, identifier and all: what is in the log stays what it is."""
    ref = f"killed-{point.partition('.')[2]}"
    feed(platform, [broken(order(ref))])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    process = start("dead-letters", "replay", str(path), ANABRANCH_KILL_AT=point)
    out, err = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, f"{out}\n{err}"

    (line,) = path.read_text().splitlines()
    path.write_text(line.replace('"identifier": "', '"identifier": "other-'))
    done = replay(path)
    first = point == "replay.committed"
    assert (done["replayed"], done["already"]) == ((0, 1) if first else (1, 0))
    assert replay(path)["replayed"] == 0
    (left,) = listed("--since", now)
    letter = f"{left['topic']}/{left['partition']}/{left['offset']}"
    assert in_log(platform, ref) == [(f"{ref}-PLACED" if first else f"other-{ref}-PLACED", letter)]
    assert left["replayed_to"].startswith("changelog.order/")
    assert_exact(platform)


def test_a_replay_that_is_killed_half_way_sends_the_rest(platform: Settings, now: str, tmp_path: Path) -> None:
    feed(platform, [broken(order(f"half-{n}")) for n in range(600)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    process = start("dead-letters", "replay", str(path), ANABRANCH_KILL_AT="replay.noted#2")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    done = replay(path)
    assert (done["replayed"], done["already"], done["refused"]) == (100, 500, 0)
    assert_exact(platform)
    assert query(platform, "SELECT count(*) FROM serving.order_latest WHERE ref LIKE 'half-%'") == [[600]]


@pytest.mark.slow
def test_notes_that_are_lost_are_found_in_the_log(
    platform: Settings, lake: SparkSession, now: str, tmp_path: Path
) -> None:
    feed(platform, [broken(order(f"forgotten-{n}")) for n in range(2)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    replay(path)
    for where in ("Kafka", "the archive"):
        with ops.connect(platform) as connection:
            connection.execute("DELETE FROM dead_letter_replays WHERE ref LIKE 'forgotten-%'")
        said = run("dead-letters", "replay", str(path), error=True)
        assert said.count("already in the log: changelog.order/") == 2, where
        batch(lake, platform)
    assert [len(in_log(platform, f"forgotten-{n}")) for n in range(2)] == [1, 1]
    assert listed("--since", now, "--state", "open") == []
    assert_exact(platform)


@pytest.mark.slow
def test_a_version_that_the_log_has_gone_on_from_is_not_put_on_top_unasked(
    platform: Settings, lake: SparkSession, now: str, tmp_path: Path
) -> None:
    placed = order("on-top")
    paid = order("on-top", "PAID", placed["current"])
    shipped = order("on-top", "SHIPPED", paid["current"])
    feed(platform, [sent(placed), broken(paid), sent(shipped), sent(placed)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    said = run("dead-letters", "replay", str(path), status=1, error=True)
    assert "refused: order on-top has changed since (changelog.order/" in said
    assert "shop, on-top-SHIPPED" in said
    batch(lake, platform)
    assert "has changed since" in run("dead-letters", "replay", str(path), status=1, error=True), "from the archive too"
    assert replay(path, "--superseded")["replayed"] == 1
    assert_exact(platform)
    assert query(platform, "SELECT status FROM serving.order_latest WHERE ref = 'on-top'") == [["PAID"]]


def test_versions_that_were_all_broken_come_back_in_their_order_also_one_by_one(
    platform: Settings, now: str, tmp_path: Path
) -> None:
    placed = order("chain")
    paid = order("chain", "PAID", placed["current"])
    shipped = order("chain", "SHIPPED", paid["current"])
    feed(platform, [broken(one) for one in (placed, paid, shipped)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    lines = path.read_text().splitlines(keepends=True)
    for some in ((0,), (2, 1), (0, 1, 2)):
        path.write_text("".join(lines[number] for number in some))
        replay(path)
    assert [identifier for identifier, _ in in_log(platform, "chain")] == [
        "chain-PLACED",
        "chain-PAID",
        "chain-SHIPPED",
    ]
    assert_exact(platform)
    assert query(platform, "SELECT status FROM serving.order_latest WHERE ref = 'chain'") == [["SHIPPED"]]


def test_what_does_not_say_who_wrote_it_comes_back_under_a_name_of_its_place(
    platform: Settings, now: str, tmp_path: Path
) -> None:
    unsaid = order("unsaid")
    del unsaid["provenance"]
    feed(platform, [sent(unsaid)])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, lambda line: None)
    (one,) = listed("--since", now)
    place = f"{one['topic']}/{one['partition']}/{one['offset']}"
    assert replay(path)["replayed"] == 1
    assert in_log(platform, "unsaid")[1:] == [(place, place)]


def test_copies_of_a_broken_record_become_one_change(platform: Settings, now: str, tmp_path: Path) -> None:
    feed(platform, [broken(order("copied"))] * 3)
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    first, second, third = path.read_text().splitlines()
    path.write_text("\n".join([first, second, third.replace('"PLACED"', '"PAID"')]))
    said = run("dead-letters", "replay", str(path), status=1, error=True)
    assert f"{path}:2: a copy of line 1" in said
    assert f"{path}:3: refused: line 1 has its service and identifier, and says something else" in said
    assert sorted(one["replayed_to"] is None for one in listed("--since", now)) == [False, False, True]
    path.write_text(third)
    assert "already in the log" in run("dead-letters", "replay", str(path), error=True)
    assert len({one["replayed_to"] for one in listed("--since", now)}) == 1
    assert len(in_log(platform, "copied")) == 1
    assert_exact(platform)


def test_a_line_of_what_is_no_dead_letter_is_refused(platform: Settings, now: str, tmp_path: Path) -> None:
    feed(platform, [broken(order("elsewhere"))])
    run("wait")
    path = exported(tmp_path / "letters.jsonl", now, mended)
    path.write_text(path.read_text().replace('"offset": ', '"offset": 99999'))
    assert "there is no dead letter at changelog.order/" in run(
        "dead-letters", "replay", str(path), status=1, error=True
    )


@pytest.mark.slow
def test_nothing_is_left_half_done(platform: Settings, lake: SparkSession) -> None:
    assert query(platform, "SELECT count(*) FROM ops.public.dead_letter_replays WHERE replayed_at IS NULL") == [[0]]
    batch(lake, platform)
    assert_exact(platform)
    assert_verified(lake, platform)
