"""Commands on real services, as a user gives them, and as records that nobody should have sent."""

import json
import os
import signal
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from changelog.commands.outcome import Outcome, Place, parse_outcome
from changelog.commands.schema import COMMANDS, OUTCOMES, command_topic
from changelog.commands.service import GROUP
from changelog.envelope import encode, envelope
from changelog.producer import ChangelogProducer, Record
from changelog.topics import acknowledged_offsets, delete_group, end_offsets
from infra import cli, supervise
from runtime.settings import Settings
from tests.services import (
    assert_exact,
    assert_verified,
    batch,
    feed,
    query,
    read_topics,
    run,
    shop,
    start,
    status,
    transactional,
    until,
)

pytestmark = pytest.mark.integration

ITEM = "sku-7:2:9.99"


def ask(*words: str, status: int = 0) -> dict[str, Any]:
    """Give a command and wait for its outcome."""
    done = CliRunner().invoke(cli.app, ["command", *words, "--wait", "--json"], catch_exceptions=False)
    assert done.exit_code == status, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def codes(outcome: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in outcome["reasons"]]


def outcomes(settings: Settings) -> list[Outcome]:
    """Every outcome there is."""
    log = read_topics(settings, {OUTCOMES: range(settings.kafka.partitions)})
    return [parse_outcome(record.value or b"") for record in log]


def asked(settings: Settings) -> set[Place]:
    """Where every record of a command is."""
    topics = {command_topic(name): range(settings.kafka.partitions) for name in COMMANDS}
    return {Place(record.topic, record.partition, record.offset) for record in read_topics(settings, topics)}


def await_all_answered(settings: Settings) -> list[Outcome]:
    """Every record of a command has one outcome, none has two."""
    everything = asked(settings)
    until(lambda: {outcome.source for outcome in outcomes(settings)} >= everything, 60, "all commands are answered")
    found = outcomes(settings)
    assert Counter(outcome.source for outcome in found) == Counter(everything)
    return found


def versions(settings: Settings, ref: str) -> list[dict[str, Any]]:
    """The envelopes of an order, in the order of the log."""
    log = read_topics(settings, {"changelog.order": range(settings.kafka.partitions)})
    told = [json.loads(record.value) for record in log if record.value and ref.encode() in record.value]
    return [one for one in told if (one.get("current") or one["original"])["ref"] == ref]


def test_a_guest_an_order_and_what_becomes_of_it(platform: Settings) -> None:
    guest = ask("update-guest", "--guest", "cg-1", "--email", "ada@example.com", "--create")
    assert (guest["status"], [place["topic"] for place in guest["records"]]) == ("accepted", ["changelog.guest"])
    placed = ask("place-order", "--guest", "cg-1", "--order", "co-1", "--currency", "GBP", "--item", ITEM)
    assert [place["topic"] for place in placed["records"]] == ["changelog.order", "changelog.event"]
    version = placed["records"][0]["offset"]
    wrong = ask("change-order", "--guest", "cg-1", "--order", "co-1", "--status", "SHIPPED", "--expected-version", "0",
                "--total", "1", status=1)  # fmt: skip
    assert codes(wrong) == ["wrong-version", "wrong-status", "total"]
    paid = ask("change-order", "--guest", "cg-1", "--order", "co-1", "--status", "PAID", "--expected-version",
               str(version))  # fmt: skip
    stale = ask("cancel-order", "--guest", "cg-1", "--order", "co-1", "--expected-version", str(version), status=1)
    assert codes(stale) == ["wrong-version"]
    run("wait")
    read = query(platform, "SELECT status, total FROM serving.order_latest WHERE ref = 'co-1'")
    assert [[str(value) for value in row] for row in read] == [["PAID", "19.9800"]]
    cancelled = ask("cancel-order", "--guest", "cg-1", "--order", "co-1", "--channel", "CALL_CENTER")
    assert [place["topic"] for place in cancelled["records"]] == ["changelog.order", "changelog.event"]
    chain = versions(platform, "co-1")
    assert [one["current"]["status"] for one in chain] == ["PLACED", "PAID", "CANCELLED"]
    assert [one.get("original") for one in chain] == [None, chain[0]["current"], chain[1]["current"]]
    assert [one["provenance"]["identifier"] for one in chain] == [placed["id"], paid["id"], cancelled["id"]]
    assert_exact(platform)


def test_people_are_told_why_and_machines_by_the_exit_status(platform: Settings) -> None:
    told = run("command", "place-order", "--guest", "nobody", "--order", "co-1", "--currency", "GBP", "--item", ITEM,
               "--total", "7", "--wait", status=1)  # fmt: skip
    assert told.startswith("rejected: place-order")
    for reason in ("there is no guest 'nobody'", "order 'co-1' is another guest's", "the items make 19.98"):
        assert reason in told
    sent = json.loads(run("command", "update-guest", "--guest", "cg-1", "--country", "GB", "--json"))
    assert sent["sent"]["topic"] == "command.update-guest"
    refused = run("command", "place-order", "--guest", "cg-1", "--order", "x", "--item", ITEM, status=1, error=True)
    assert "was not sent" in refused
    assert "currency" in refused


def test_an_id_that_comes_again_is_answered_and_does_nothing(platform: Settings) -> None:
    words = ["place-order", "--guest", "cg-1", "--order", "co-2", "--currency", "GBP", "--item", ITEM, "--id", "once"]
    first = ask(*words)
    again = ask(*words)
    assert (again["status"], again["records"]) == ("accepted", first["records"])
    assert again["repeats"] == {**first["source"], "sameContent": True}
    other = ask("cancel-order", "--guest", "cg-1", "--order", "co-2", "--id", "once")
    assert (other["records"], other["repeats"]["sameContent"]) == (first["records"], False)
    pid = status()["commands"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: status()["commands"]["pid"] not in (pid, None), 60, "the supervisor starts it again")
    assert ask(*words)["repeats"]["sameContent"], "another life knows it"
    assert len(versions(platform, "co-2")) == 1


def test_whose_an_entity_is_nobody_else_changes(platform: Settings) -> None:
    guest = {"ref": "cg-2", "createdAt": "2026-01-01T00:00:00.000Z", "modifiedAt": "2026-01-01T00:00:00.000Z"}
    feed(platform, [Record("changelog.guest", b"cg-2", encode(envelope("old-shop", "i-1", guest)))])
    assert codes(ask("update-guest", "--guest", "cg-2", "--email", "x@y", status=1)) == ["other-writer"]
    assert ask("place-order", "--guest", "cg-2", "--order", "co-3", "--currency", "EUR", "--item", ITEM)["records"]


def test_bad_records_are_answered_with_their_place_and_stop_nothing(platform: Settings) -> None:
    values: list[bytes | None] = [
        None, b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"id": 7}', b'{"id": "bad-1", "guestRef": "cg-1"}',
        b'{"a":' * 400 + b"1" + b"}" * 400, b"[" * 4000,
    ]  # fmt: skip
    before = len(outcomes(platform))
    feed(platform, [Record(command_topic(name), b"cg-1", value) for name in COMMANDS for value in values])
    feed(
        platform, [Record("command.update-guest", None, b'{"id": "bad-2", "guestRef": "cg-1", "set": {"email": "a"}}')]
    )
    assert ask("update-guest", "--guest", "cg-1", "--email", "new@example.com")["status"] == "accepted"
    found = await_all_answered(platform)
    bad = [outcome for outcome in found if outcome.status == "rejected" and outcome.id in (None, "bad-1", "bad-2")]
    assert len(bad) == len(values) * len(COMMANDS) + 1
    assert len(found) == before + len(bad) + 1
    assert all(outcome.reasons and outcome.source.topic == command_topic(outcome.command) for outcome in bad)


def test_another_ones_open_transaction_hides_nothing_of_our_own(platform: Settings) -> None:
    """What is behind it cannot be read from the log, and the next command must know it all the same."""
    ask("update-guest", "--guest", "cg-3", "--email", "c@d", "--create")
    placed = ask("place-order", "--guest", "cg-3", "--order", "co-4", "--currency", "GBP", "--item", ITEM)
    until(lambda: end_offsets(platform) == acknowledged_offsets(platform), 30, "nothing is open")
    producer = transactional(platform, "tests-hiding")
    producer.begin_transaction()
    producer.produce("changelog.order", key=b"cg-3", value=b"never committed")
    producer.flush(30)
    paid = ask("change-order", "--guest", "cg-3", "--order", "co-4", "--status", "PAID",
               "--expected-version", str(placed["records"][0]["offset"]))  # fmt: skip
    shipped = ask("change-order", "--guest", "cg-3", "--order", "co-4", "--status", "SHIPPED",
                  "--expected-version", str(paid["records"][0]["offset"]))  # fmt: skip
    os.kill(status()["commands"]["pid"], signal.SIGKILL)
    until(lambda: "a transaction is open" in str(status()["commands"]["detail"]), 60, "it waits, and says for what")
    producer.abort_transaction(30)
    assert codes(ask("cancel-order", "--guest", "cg-3", "--order", "co-4", status=1)) == ["closed"]
    chain = versions(platform, "co-4")
    assert [one["provenance"]["identifier"] for one in chain] == [placed["id"], paid["id"], shipped["id"]]
    assert [one.get("original") for one in chain] == [None, chain[0]["current"], chain[1]["current"]]


def test_of_two_instances_one_waits_until_the_other_is_gone(platform: Settings) -> None:
    second = start(module="changelog.commands")
    try:
        assert second.stderr is not None
        assert "another instance answers" in second.stderr.readline()
        assert ask("update-guest", "--guest", "cg-1", "--first-name", "Ada")["status"] == "accepted"
        supervise.proxy(platform).stopProcess("commands", True)
        assert ask("update-guest", "--guest", "cg-1", "--first-name", "Grace")["status"] == "accepted"
        supervise.start_service(platform, "commands")
    finally:
        second.terminate()
        _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert ask("update-guest", "--guest", "cg-1", "--first-name", "Barbara")["status"] == "accepted"


def test_how_far_was_read_is_forgotten_and_nothing_is_answered_twice(platform: Settings) -> None:
    await_all_answered(platform)
    supervise.proxy(platform).stopProcess("commands", True)
    delete_group(platform, GROUP)
    supervise.start_service(platform, "commands")
    assert ask("update-guest", "--guest", "cg-1", "--last-name", "Lovelace")["status"] == "accepted"
    await_all_answered(platform)


@pytest.mark.slow
def test_commands_beside_a_shop_leave_an_exact_log(platform: Settings, lake: SparkSession) -> None:
    with ChangelogProducer(platform) as producer:
        for number, record in enumerate(shop(741, 600)):
            producer.send(record)
            guest = f"cg-{number % 7}"
            told = {"id": f"mass-{number % 500}", "guestRef": guest, "create": True, "set": {"lastName": f"n{number}"}}
            producer.send(Record("command.update-guest", guest.encode(), json.dumps(told).encode()))
    found = await_all_answered(platform)
    mass = [outcome for outcome in found if (outcome.id or "").startswith("mass-")]
    assert Counter(bool(outcome.repeats) for outcome in mass) == {False: 500, True: 100}
    assert_exact(platform)
    batch(lake, platform)
    assert_exact(platform)
    assert_verified(lake, platform)
