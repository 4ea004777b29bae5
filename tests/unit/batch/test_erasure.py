"""What of the log may go before its time, and how far an erasure is."""

from datetime import UTC, datetime

import pytest

from batch import erasure
from batch.erasure import Proof, Waiting, ensure_published, needed_from, purgeable
from batch.search import Found, InTopic
from changelog.sources.cdc.mapper import Mark
from runtime.errors import BehindError, TerminalError, TransientError
from runtime.settings import Settings

pytestmark = pytest.mark.unit

POSITIONS = {"changelog.order": {0: 11, 1: 10}, "command.place-order": {0: 3}, "cdc.shop": {0: 8}}


@pytest.mark.parametrize(
    ("topic", "partition", "last", "goes"),
    [
        ("changelog.order", 0, 10, True),
        ("changelog.order", 1, 10, False),  # the next offset of somebody who reads it is 10
        ("command.place-order", 0, 2, True),
        ("command.place-order", 0, 3, False),
        ("cdc.shop", 0, 8, False),
        ("patch.order", 0, 99, True),
        ("command.outcomes", 0, 0, False),  # tells which commands were answered
        ("alert.cancellations", 0, 0, False),  # tells which alerts were sent
        ("latest.order", 0, 0, False),
        ("cdc.bad", 0, 0, False),
    ],
)
def test_the_log_is_cut_off_only_behind_everybody_who_reads_it(
    topic: str, partition: int, last: int, goes: bool
) -> None:
    waiting = Waiting(topic, partition, last, datetime(2026, 1, 1, tzinfo=UTC))
    assert purgeable([waiting], POSITIONS) == ([waiting] if goes else [])


def test_a_compacted_topic_is_said_to_wait_for_the_next_record() -> None:
    gone_at = datetime(2026, 1, 1, tzinfo=UTC)
    assert str(Waiting("patch.order", 1, 7, gone_at)) == "patch.order/1 up to offset 7, gone by 2026-01-01 00:00 UTC"
    assert str(Waiting("latest.order", 1, 7, gone_at, True)).endswith(
        "if something more is written to this partition before"
    )


def test_time_helps_in_kafka_and_nowhere_else() -> None:
    stores = [InTopic("kafka: patch.order", 3, 1), Found("bucket: lake", 5, 2), Found("bucket: archive", 5)]
    proof = Proof(stores)
    assert [store.store for store in proof.found] == ["kafka: patch.order", "bucket: lake"]
    assert [store.store for store in proof.elsewhere] == ["bucket: lake"]
    assert Proof(stores[:1]).elsewhere == []


@pytest.mark.parametrize(
    ("published", "raises", "ends"),
    [
        ([True], None, None),  # somebody was first
        ([False, True], None, "done"),
        ([False, True], BehindError("behind"), None),  # somebody was first just now
        ([False, False], BehindError("behind"), BehindError),
        ([False, False], None, TransientError),
    ],
)
def test_who_published_without_the_guest_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, published: list[bool], raises: TerminalError | None, ends: object
) -> None:
    answers = iter(published)
    monkeypatch.setattr(erasure, "is_published", lambda _settings, _erasure: next(answers))

    def publish() -> str:
        if raises:
            raise raises
        return "done"

    if isinstance(ends, type) and issubclass(ends, Exception):
        with pytest.raises(ends):
            ensure_published(Settings(), 1, publish)
    else:
        assert ensure_published(Settings(), 1, publish) == ends
    assert list(answers) == []


def test_a_snapshot_of_the_shop_holds_what_it_is_read_from() -> None:
    mark = Mark("life", 0)
    assert needed_from(None) == 0
    assert needed_from((9, "")) == needed_from((9, mark.to_json())) == 9
    assert needed_from((9, mark._replace(since=4, started=6).to_json())) == 4
