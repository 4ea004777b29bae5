"""The law of duplicate detection: whatever is replayed, lost or dropped, the answers are those of the log."""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from changelog.identities import SLACK_SECONDS, Identities, Row, digest

pytestmark = pytest.mark.property

HORIZON = 3600
SECOND = 1_000_000


@st.composite
def partitions(draw: st.DrawFn) -> list[Row]:
    """The changes of a partition: few identities, offsets with gaps, pauses around the horizon."""
    steps = draw(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.integers(1, 3),
                st.sampled_from([0, 1, 600, HORIZON - 1, HORIZON, HORIZON + 1, HORIZON + SLACK_SECONDS + 1, 9999]),
            ),
            min_size=1,
            max_size=25,
        )
    )
    rows, offset, time = [], 0, 1_700_000_000
    for identity, gap, pause in steps:
        offset, time = offset + gap, time + pause
        rows.append((offset, time * SECOND, digest(b"key", "shop", str(identity))))
    return rows


def by_the_log(rows: list[Row]) -> list[bool]:
    """A change is a duplicate iff the copy before it is at most the horizon before it."""
    last: dict[bytes, int] = {}
    answers = []
    for _, time, identity in rows:
        answers.append(identity in last and time - last[identity] <= HORIZON * SECOND)
        last[identity] = time
    return answers


@given(
    rows=partitions(),
    cuts=st.sets(st.integers(1, 24), max_size=5),
    crashes=st.lists(st.integers(0, 25), max_size=4),
    lost=st.sets(st.integers(0, 5), max_size=2),
)
@settings(max_examples=150)
def test_replays_losses_and_what_was_dropped_change_no_answer(
    rows: list[Row], cuts: set[int], crashes: list[int], lost: set[int]
) -> None:
    """Epochs with any cuts; each may die half way several times, and the store may be lost before it."""
    home = Path(tempfile.mkdtemp())
    store = Identities(home / "store", HORIZON)
    answers: list[bool] = []
    try:
        bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
        for number, (low, high) in enumerate(pairwise(bounds)):
            epoch = rows[low:high]
            if number in lost:
                store.close()
                shutil.rmtree(home / "store")
                store = Identities(home / "store", HORIZON)
                since = epoch[0][1] - (HORIZON + SLACK_SECONDS) * SECOND
                store.mark([row for row in rows[:low] if row[1] >= since], epoch[0][0])
            for crash in crashes:
                store.forget(epoch[0][1])
                store.mark(epoch[:crash], epoch[min(crash, len(epoch)) - 1][0] + 1)
            store.forget(epoch[0][1])
            middle = len(epoch) // 2
            for batch in (epoch[:middle], epoch[middle:]):  # as Arrow batches come
                answers += store.mark(batch, epoch[-1][0] + 1)
            assert store.next() == epoch[-1][0] + 1
    finally:
        store.close()
        shutil.rmtree(home)
    assert answers == by_the_log(rows)


def test_what_is_older_than_horizon_and_slack_is_dropped(tmp_path: Path) -> None:
    store = Identities(tmp_path, HORIZON)
    time = 1_700_000_000 * SECOND
    store.mark([(n, time + n, digest(None, "shop", str(n))) for n in range(1000)], 1000)
    assert store.count() == 1000
    store.forget(time + (HORIZON + SLACK_SECONDS) * SECOND + 500)
    assert store.count() == 500
    store.forget(time + 10 * (HORIZON + SLACK_SECONDS) * SECOND)
    assert store.count() == 0
    store.close()


def test_an_identity_is_told_by_each_of_its_parts() -> None:
    identities = [(b"k", "a", "bc"), (b"k", "ab", "c"), (b"ka", "", "bc"), (b"k", "a", "bd"), (None, "a", "bc")]
    assert len({digest(*identity) for identity in identities}) == len(identities)
