"""What a generation of the speed layer can have lost, and what is mended in place."""

import zlib
from pathlib import Path

import lmdb
import pytest

from changelog.positions import Vector
from changelog.stores import is_whole
from runtime.errors import ArchiveBehindError, ContractError, LostStateError
from runtime.settings import Settings
from speed.checkpoint import Stand, damaged, remove, stand
from speed.generation import CHECKPOINT, EPOCHS, HISTORIES, RETENTION, Generation, refuse_gap
from speed.history import Store, standing
from speed.state import check_agreement, check_retention, check_state, mend
from views.matching import matching
from views.registry import views_of

pytestmark = pytest.mark.unit

VIEWS = matching(views_of("main"))
START: Vector = {"changelog.order": {0: 0, 1: 0}, "changelog.event": {0: 0, 1: 0}, "changelog.guest": {0: 0, 1: 0}}


def write(path: Path, text: str, summed: bool = True) -> None:
    """A file as Hadoop's local file system leaves it: with sums of its blocks of 512 bytes beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(data)
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    if summed:
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)


def plan(path: Path, epoch: int) -> None:
    end = "{" + ", ".join(f'"{topic}": {{"0": {epoch + 1}, "1": {epoch + 1}}}' for topic in START) + "}"
    conf = '{"batchWatermarkMs":0,"batchTimestampMs":5000,"conf":{"' + "x" * 700 + '":"2"}}'
    write(path / "offsets" / str(epoch), f"v1\n{conf}\n{end}")


def checkpoint(path: Path, planned: int, done: int) -> Path:
    """A checkpoint as Spark leaves it."""
    write(path / "metadata", '{"id":"11111111-2222-3333-4444-555555555555"}')
    write(path / "sources" / "0" / "0", '\0v1\n{"changelog.order":{"0":0,"1":0}}')
    for epoch in range(planned + 1):
        plan(path, epoch)
    for epoch in range(done + 1):
        write(path / "commits" / str(epoch), 'v1\n{"nextBatchWatermarkMs":0}')
    return path


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_a_checkpoint_that_spark_can_read_is_whole(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 11, 10)
    assert stand(path) == Stand(11, 10)
    assert damaged(path) == []
    cut(path / "offsets" / "3", 0)
    cut(path / "commits" / "3", 0)
    cut(path / "sources" / "0" / "0", 0)
    assert damaged(path) == [], "Spark does not read those again"
    assert stand(tmp_path / "nothing") == Stand(-1, -1)


@pytest.mark.parametrize("name", ["metadata", "offsets/11", "offsets/10", "commits/10"])
@pytest.mark.parametrize("size", [0, 1, 3, 20, -1])
@pytest.mark.parametrize("summed", [True, False])
def test_a_file_that_is_cut_off_anywhere_is_damaged(tmp_path: Path, name: str, size: int, summed: bool) -> None:
    path = checkpoint(tmp_path, 11, 10)
    cut(path / name, size)
    if not summed:
        file = path / name
        file.with_name(f".{file.name}.crc").unlink()
    assert damaged(path) == [path / name]


def test_a_file_whose_bytes_are_not_what_they_were_is_damaged(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 11, 10)
    file = path / "offsets" / "11"
    file.write_text(file.read_text().replace('"0": 12', '"0": 13'))
    assert damaged(path) == [file], "Hadoop refuses it: its sums do not agree"
    file.with_name(".11.crc").write_bytes(b"")
    assert damaged(path) == [], "sums that are cut off are none"


def test_a_plan_that_is_gone_is_missed_and_the_name_is_not(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 11, 10)
    remove(path / "metadata")
    assert damaged(path) == []
    remove(path / "offsets" / "10")
    assert damaged(path) == [path / "offsets" / "10"]


def test_a_damaged_note_that_the_newest_epoch_is_done_lets_it_run_again(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10, 10)
    cut(path / "commits" / "10", 4)
    assert mend(path, 10, "here") == Stand(10, 9)
    assert not (path / "commits" / ".10.crc").exists()
    assert mend(path, 10, "here") == Stand(10, 9)


def test_a_damaged_name_is_removed_and_everything_else_is_looked_at_all_the_same(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 10, 10)
    cut(path / "metadata", 0)
    cut(path / "commits" / "10", 0)
    assert mend(path, 10, "here") == Stand(10, 9)
    assert not (path / "metadata").exists()
    cut(path / "offsets" / "9", 7)
    with pytest.raises(LostStateError):
        mend(path, 10, "here")


def test_a_damaged_plan_of_which_nothing_has_come_is_taken_back(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 11, 10)
    cut(path / "offsets" / "11", 0)
    assert mend(path, 10, "here") == Stand(10, 10)


@pytest.mark.parametrize(
    ("planned", "done", "broken", "noted"),
    [
        (11, 10, "offsets/11", 11),  # something has come of it, and nobody knows where it ended
        (10, 10, "offsets/10", 10),
        (11, 10, "offsets/10", 10),
        (11, 10, "commits/10", 10),
    ],
)
def test_any_other_damage_is_a_checkpoint_that_is_lost(
    tmp_path: Path, planned: int, done: int, broken: str, noted: int
) -> None:
    path = checkpoint(tmp_path, planned, done)
    cut(path / broken, 0)
    with pytest.raises(LostStateError, match=broken) as lost:
        mend(path, noted, "here")
    assert lost.value.cause == CHECKPOINT
    assert (path / broken).exists(), "nothing was touched"


@pytest.mark.parametrize(
    ("at", "stored", "histories", "cause"),
    [
        (Stand(10, 10), 10, (10, 10), None),
        (Stand(11, 10), 10, (10, 11), None),  # interrupted while it looked for matches
        (Stand(11, 10), 11, (11, 11), None),  # interrupted after its commit
        (Stand(0, -1), -1, (-1, -1), None),
        (Stand(10, 10), 11, (10, 10), CHECKPOINT),  # the newest plan is gone, and what came of it is stored
        (Stand(12, 10), 11, (11, 11), CHECKPOINT),
        (Stand(9, 10), 10, (10, 10), CHECKPOINT),
        (Stand(10, 10), 9, (10, 10), EPOCHS),
        (Stand(10, 10), -1, (10, 10), EPOCHS),
        (Stand(10, 10), 10, (10, 11), HISTORIES),  # they know an epoch that is not planned: it may end elsewhere now
        (Stand(10, 10), 10, (10, 9), HISTORIES),
        (Stand(10, 10), 10, (10, None), HISTORIES),
    ],
)
def test_checkpoint_table_and_histories_have_to_tell_of_the_same_epochs(
    at: Stand, stored: int, histories: tuple[int | None, ...], cause: str | None
) -> None:
    known = dict(enumerate(histories))
    if cause is None:
        check_agreement("here", at, stored, known, [0, 1])
        return
    with pytest.raises(LostStateError) as lost:
        check_agreement("here", at, stored, known, [0, 1])
    assert lost.value.cause == cause


def test_where_kafka_begins_behind_the_stream_records_were_let_go_of() -> None:
    position = {"t": {0: 5, 1: 9}}
    check_retention("here", position, {"t": {0: 5, 1: 0}})
    with pytest.raises(LostStateError, match=r"t/1 from 9 to 11 ") as lost:
        check_retention("here", position, {"t": {0: 5, 1: 12}})
    assert lost.value.cause == RETENTION


@pytest.fixture
def generation() -> Generation:
    return Generation("main", 3, "code", START, START, {}, 3600)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("ANABRANCH_HOME", str(tmp_path))
    return Settings()


def histories(settings: Settings, generation: Generation, epoch: int) -> None:
    for partition in (0, 1):
        store = Store(generation.histories(settings) / str(partition), VIEWS)
        store.begin(START, {}, partition)
        for done in range(epoch + 1):
            store.put([], done, START, START, partition, START)
        store.close()


def test_a_generation_goes_on_behind_the_last_epoch_that_is_done(settings: Settings, generation: Generation) -> None:
    path = generation.checkpoint(settings)
    assert check_state(settings, generation, -1, VIEWS, START) == START, "a new one begins where it was to begin"
    histories(settings, generation, 11)
    checkpoint(path, 11, 10)
    assert check_state(settings, generation, 11, VIEWS, START)["changelog.order"] == {0: 11, 1: 11}
    later = {topic: dict.fromkeys(parts, 12) for topic, parts in START.items()}
    with pytest.raises(LostStateError) as lost:
        check_state(settings, generation, 11, VIEWS, later)
    assert lost.value.cause == RETENTION


def test_half_a_checkpoint_of_which_nothing_has_come_is_put_away(settings: Settings, generation: Generation) -> None:
    path = checkpoint(generation.checkpoint(settings), 0, -1)
    cut(path / "metadata", 0)
    remove(path / "offsets" / "0")
    assert check_state(settings, generation, -1, VIEWS, START) == START
    assert not path.exists()
    with pytest.raises(LostStateError, match="is lost"):
        check_state(settings, generation, 0, VIEWS, START)


def test_histories_that_are_gone_or_cut_off_are_lost(settings: Settings, generation: Generation) -> None:
    histories(settings, generation, 2)
    checkpoint(generation.checkpoint(settings), 2, 2)
    check_state(settings, generation, 2, VIEWS, START)
    data = generation.histories(settings) / "1" / "data.mdb"
    cut(data, data.stat().st_size // 2)
    with pytest.raises(LostStateError, match="histories of guests of partition 1 stand at epoch None"):
        check_state(settings, generation, 2, VIEWS, START)
    data.unlink()
    with pytest.raises(LostStateError):
        check_state(settings, generation, 2, VIEWS, START)


def test_a_store_of_which_a_page_is_damaged_is_lost_or_can_be_read(settings: Settings, generation: Generation) -> None:
    histories(settings, generation, 2)
    path = generation.histories(settings) / "1"
    whole, found = (path / "data.mdb").read_bytes(), set()
    for at in range(2 * 4096, len(whole), 4096):
        (path / "data.mdb").write_bytes(whole[:at] + bytes(4096) + whole[at + 4096 :])
        found.add(standing(path, VIEWS))
    assert None in found
    assert found <= {None, 2}


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 20_000])
def test_a_store_that_is_cut_off_is_not_whole(tmp_path: Path, size: int) -> None:
    assert is_whole(tmp_path), "there is none yet"
    with lmdb.open(str(tmp_path), max_dbs=1) as store, store.begin(write=True) as transaction:
        for number in range(2000):
            transaction.put(b"%d" % number, b"x" * 100)
    assert is_whole(tmp_path)
    cut(tmp_path / "data.mdb", size)
    assert not is_whole(tmp_path)


def test_a_generation_begins_where_the_archive_reaches_what_kafka_has() -> None:
    starts = {"t": {0: 10, 1: 0}, "u": {0: 4, 1: 4}}
    refuse_gap({"t": {0: 10}, "u": {0: 4, 1: 9}}, starts, ["t/0/12-13"])
    with pytest.raises(ArchiveBehindError, match=r"t/0 from 0 to 9, u/1 from 3 to 3 .*anabranch batch"):
        refuse_gap({"u": {0: 4, 1: 3}}, starts, [])
    with pytest.raises(ArchiveBehindError):
        refuse_gap({"t": {0: 8}, "u": {0: 4, 1: 4}}, starts, ["t/0/12-13", "u/0/1-2"])
    with pytest.raises(ContractError, match="anabranch batch --accept-hole t/0/8-8; then anabranch up"):
        refuse_gap({"t": {0: 8}, "u": {0: 4, 1: 4}}, starts, ["u/0/1-2", "t/0/8-8"])
