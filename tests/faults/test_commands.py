"""The service of commands is killed; each command has one outcome, and has its effect once or not at all."""

import json
import threading
from collections import Counter
from typing import Any

import pytest

from changelog.commands.schema import COMMANDS
from changelog.producer import ChangelogProducer, Record
from runtime.settings import Settings
from tests.faults.report import kill
from tests.faults.test_kills import go_on, points, run_until_killed, stop
from tests.integration.test_commands import await_all_answered
from tests.services import assert_exact, read_log, status, until

pytestmark = pytest.mark.faults

POINTS = (
    "commands.before-commit", "commands.after-commit", "commands.written", "commands.before-offsets", "commands.read",
)  # fmt: skip


def commands(name: str, number: int) -> list[Record]:
    """Commands of five guests: made, order, change, cancel, and every third id comes again."""
    made = []
    for at in range(number):
        guest, order = f"{name}-g{at % 5}", f"{name}-o{at % 11}-g{at % 5}"
        items = [{"sku": "s", "quantity": 1, "unitPrice": 5}]
        bodies: dict[str, dict[str, Any]] = {
            "place-order": {"channel": "WEB", "order": {"ref": order, "currency": "GBP", "total": 5, "items": items}},
            "change-order": {"orderRef": order, "change": {"country": f"C{at}"}},
            "cancel-order": {"orderRef": order, "channel": "WEB"},
            "update-guest": {"create": True, "set": {"lastName": f"n{at}"}},
        }
        for kind in COMMANDS if at % 7 == 6 else ("update-guest", "place-order", "change-order"):
            told = {"id": f"{name}-{kind}-{at}", "guestRef": guest, **bodies[kind]}
            made += [Record(f"command.{kind}", guest.encode(), json.dumps(told).encode())] * (2 if at % 3 == 0 else 1)
    return made


def send(settings: Settings, records: list[Record], rate: float = 0) -> None:
    with ChangelogProducer(settings, rate) as producer:
        for record in records:
            producer.send(record)


def assert_done_once(settings: Settings) -> None:
    """Every command has one outcome; what accepted ones say they wrote is what is in the log, and every chain holds."""
    found = await_all_answered(settings)
    firsts = [outcome for outcome in found if outcome.id and not outcome.repeats]
    assert max(Counter(outcome.id for outcome in firsts).values()) == 1
    said = {(place.topic, place.partition, place.offset) for outcome in firsts for place in outcome.records}
    log = [
        (record, json.loads(record.value))
        for record in read_log(settings)
        if record.value and b'"commands"' in record.value
    ]
    assert {(record.topic, record.partition, record.offset) for record, _ in log} == said
    newest: dict[tuple[str, str], object] = {}
    for record, told in sorted(log, key=lambda one: (one[0].topic, one[0].partition, one[0].offset)):
        if record.topic != "changelog.event":
            name = (record.topic, told["current"]["ref"])
            assert told.get("original") == newest.get(name), "the chain holds"
            newest[name] = told["current"]
    assert Counter(outcome.status for outcome in firsts)["accepted"] > 5


@pytest.mark.parametrize("point", points(*POINTS))
def test_the_service_dies_around_its_transaction(platform: Settings, point: str) -> None:
    """Read and not decided, written and not committed, committed and not noted: done again, or done."""
    stop(platform, "commands")
    send(platform, commands(point.partition(".")[2], 40))
    run_until_killed("changelog.commands", point)
    go_on(platform, "commands")
    assert_done_once(platform)


@pytest.mark.slow
def test_the_service_dies_again_and_again_while_commands_arrive(platform: Settings) -> None:
    """The supervised service, at whatever it is doing: starting, reading the log, deciding, committing."""
    sending = threading.Thread(target=send, args=(platform, commands("again", 400), 100))
    sending.start()
    killed = {None}
    while sending.is_alive():
        until(lambda: status()["commands"]["pid"] not in killed, 60, "the supervisor starts it again")
        pid = status()["commands"]["pid"]
        sending.join(1.3)  # it may die anywhere
        kill(pid)
        killed.add(pid)
    until(lambda: status()["commands"]["pid"] not in killed, 60, "the supervisor starts it again")
    assert len(killed) > 4
    assert_done_once(platform)
    assert_exact(platform)
