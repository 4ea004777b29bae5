"""The tutorial, done as it says, in a checkout and a home of its own."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.version import ROOT
from tests.checkout import Checkout

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TUTORIAL = (ROOT / "docs" / "add-a-view.md").read_text()
CODE = re.search(r"Write `(views/\w+\.py)`:\n\n```python\n(.*?)```", TUTORIAL, re.DOTALL)
COMMANDS = re.findall(r"^uv run (anabranch .*)$", TUTORIAL, re.MULTILINE)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    try:
        yield made
    finally:
        made.run("anabranch down")


def test_the_tutorial_ends_with_a_merged_answer(checkout: Checkout) -> None:
    assert CODE is not None
    assert len(CODE[2].splitlines()) < 30
    checkout.run("anabranch up")
    checkout.run("anabranch simulate --rate 200 --seconds 5 --seed 3")
    checkout.run("anabranch wait")
    (checkout.root / CODE[1]).write_text(CODE[2])
    assert [command.split()[1] for command in COMMANDS] == ["explain", "generation", "batch", "query", "verify"]
    outputs = [checkout.run(command) for command in COMMANDS]
    assert "searches" in outputs[0]
    answer = dict(line.split(",") for line in outputs[3].splitlines()[1:])
    events = "SELECT channel, sum(events) FROM serving.traffic WHERE type = 'SEARCH' GROUP BY channel"
    truth = checkout.run(f'anabranch query "{events}" --format csv').splitlines()[1:]
    assert answer == dict(line.split(",") for line in truth)
    assert len(answer) > 1
    checkout.run("anabranch simulate --rate 200 --seconds 5 --seed 4")
    checkout.run("anabranch wait")
    later = dict(line.split(",") for line in checkout.run(COMMANDS[3]).splitlines()[1:])
    assert sum(map(int, later.values())) > sum(map(int, answer.values())), "the speed side adds to it"
