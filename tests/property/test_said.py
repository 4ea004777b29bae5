"""The law of what the log last said: wherever the derived topics stand, it is what the whole log says."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from changelog.changes import Change
from changelog.envelope import encode, envelope
from changelog.exact import parse
from changelog.latest import Update, Version
from changelog.reader import Entry
from changelog.said import Said
from runtime.settings import Settings

pytestmark = pytest.mark.property

Entity = dict[str, Any]


@st.composite
def logs(draw: st.DrawFn) -> list[Change]:
    """The changes of two partitions, as they were appended: creates, updates, deletes, and orders that move to another
    guest, in the same partition or the other. Guest g-0 and g-1 are in partition 0, the others in 1."""
    live: dict[str, Entity] = {}
    log: list[Change] = []

    def say(current: Entity | None, original: Entity | None) -> None:
        guest = (current or original or {})["guestRef"]
        value = encode(envelope("shop", f"i-{len(log)}", current, original))
        entry = Entry("changelog.order", int(guest[-1]) // 2, len(log), len(log), guest.encode(), value, {})
        log.append(Change("order", entry, "shop", f"i-{len(log)}"))

    for number in range(draw(st.integers(1, 25))):
        ref, guest = draw(st.sampled_from(["o-1", "o-2", "o-3"])), draw(st.sampled_from(["g-0", "g-1", "g-2", "g-3"]))
        before = live.pop(ref, None)
        after = {"ref": ref, "guestRef": guest, "n": number}
        if before is None or before["guestRef"] == guest:
            if before is not None and draw(st.booleans()):
                say(None, before)
                continue
            say(after, before)
        else:
            say(None, before)
            say(after, None)
        live[ref] = after
    return log


@given(log=logs(), committed=st.integers(0, 25), ahead=st.integers(0, 25), tombstones=st.booleans())
@hypothesis_settings(max_examples=150)
def test_derived_topics_and_the_rest_of_the_log_say_what_the_whole_log_says(
    log: list[Change], committed: int, ahead: int, tombstones: bool
) -> None:
    """``committed``: where the service stands when it is asked; ``ahead``: how much further it is when its topics are
    read, compacted, with the deletes that compaction has not dropped yet or without."""
    newest = {(c.entry.partition, ref(c)): c for c in log[: committed + ahead]}
    whole = {(c.entry.partition, ref(c)): c for c in log}
    with tempfile.TemporaryDirectory() as home:
        said = Said(Settings(), Path(home) / "said", ["order"])
        said._caught_up = True
        with said._open.begin(write=True) as transaction:
            for change in newest.values():
                if (version := version_of(change)) or tombstones:
                    entry = change.entry
                    update = Update(ref(change), entry.partition, entry.offset, entry.time, version)
                    said._take(transaction, "order", update)
        for change in log[committed:]:
            said._apply([change])
        for number in (1, 2, 3):
            alive = [c for (_, one), c in whole.items() if one == f"o-{number}" and version_of(c)]
            found = said.find("order", f"o-{number}")
            assert found == ((alive[0].entry.key or b"").decode(), version_of(alive[0])) if alive else found is None
        for guest in ("g-0", "g-1", "g-2", "g-3"):
            mine = [v for c in whole.values() if (v := version_of(c)) and v.current["guestRef"] == guest]
            assert sorted(said.of_guest("order", guest), key=str) == sorted(mine, key=str)
            for version in mine:
                assert said.get("order", guest, version.current["ref"]) == version
        said.close()


def said_of(change: Change) -> Entity:
    """The envelope of a change."""
    made: Entity = parse(change.entry.value or b"")
    return made


def ref(change: Change) -> str:
    envelope_ = said_of(change)
    return str((envelope_.get("current") or envelope_["original"])["ref"])


def version_of(change: Change) -> Version | None:
    current = said_of(change).get("current")
    entry = change.entry
    return Version(current, entry.offset, "shop", change.identifier, entry.partition) if current else None
