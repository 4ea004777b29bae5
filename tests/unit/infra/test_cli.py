"""The command line: every command explains itself, wrong usage ends with 2, an error with a message and 1."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from infra import cli
from runtime.errors import AnabranchError, ConflictError, TerminalError

pytestmark = pytest.mark.unit

Run = Callable[..., tuple[int, str, str]]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Words of every command, the groups included."""
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = list(commands(typer.main.get_command(cli.app)))


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``anabranch`` as the entry point does, in an empty home and with nothing to talk to: (status, out, err)."""
    for name in ("TRINO__PORT", "OPS__PORT", "CATALOG__PORT"):
        monkeypatch.setenv(f"ANABRANCH_{name}", "1")
    for name in ("OPS", "CATALOG"):
        monkeypatch.setenv(f"ANABRANCH_{name}__NAME", name.lower())
        monkeypatch.setenv(f"ANABRANCH_{name}__USER", name.lower())
    monkeypatch.setenv("ANABRANCH_KAFKA__BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr("trino.client.sleep", lambda _: None)  # between attempts to reach what is not there

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["anabranch", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "anabranch")
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.app, [*words, "--help"], prog_name="anabranch")
    assert result.exit_code == 0
    usage, *rest = result.output.strip().splitlines()
    assert usage.strip().startswith(" ".join(["Usage: anabranch", *words]))
    assert len(" ".join(rest).split()) > 10


def test_the_commands_that_were_promised_are_there() -> None:
    promised = (
        "up down status logs demo load simulate batch publish rollback release boundary views explain query wait verify"
    )
    assert {(name,) for name in promised.split()} | {("replay", "online-retail")} <= set(COMMANDS)


def test_without_words_it_shows_its_commands(run: Run) -> None:
    _, out, err = run()
    assert "anabranch demo" in out + err
    assert "rollback" in out + err


@pytest.mark.parametrize(
    "words",
    [
        "nonsense",
        "up now",
        "status --xml",
        "logs",
        "logs speed -n many",
        "load",
        "simulate",
        "simulate --rate 0 --seconds 5",
        "simulate --records 5 --late 2",
        "replay",
        "replay online-retail",
        "replay online-retail --path /nowhere",
        "query",
        "query x --format xml",
        "explain",
        "batch --patience soon",
        "dead-letters",
        "dead-letters list --limit -1",
        "dead-letters list --state mended",
        "dead-letters show changelog.order 1",
        "dead-letters show changelog.order one 1",
        "dead-letters export",
        "dead-letters replay",
        "schema",
        "audit --limit -1",
        "wait --timeout soon",
    ],
)
def test_wrong_usage_ends_with_2_and_says_how(run: Run, words: str) -> None:
    status, out, err = run(*words.split())
    assert status == 2
    assert "Usage: " in out + err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("status", "nothing has been started in .*: anabranch up"),
        ("logs speed", "no log of 'speed'; there are: none yet"),
        ("load /nowhere.jsonl", "/nowhere.jsonl cannot be read: "),
        ("explain nothing", "there is no view 'nothing'; there are .*revenue"),
        ("batch --view nothing", "there is no view 'nothing'; there are .*revenue"),
        ("query x", "Trino did not answer: "),
        ("boundary", "Trino did not answer: "),
        ("dead-letters list", "Trino did not answer: "),
        ("dead-letters list --topic orders", "there is no topic 'orders'; there are changelog.guest, "),
        ("dead-letters list --since yesterday", "--since 'yesterday' is not a time in ISO 8601"),
        ("dead-letters export /nowhere/letters.jsonl", "/nowhere/letters.jsonl cannot be written: "),
        ("dead-letters replay /nowhere.jsonl", "/nowhere.jsonl cannot be read: "),
        ("audit", "say what is asked for: --service, --identifier, --order or --guest"),
        ("audit --order o-1", "Trino did not answer: "),
    ],
)
def test_an_error_is_one_message_and_ends_with_1(run: Run, words: str, message: str) -> None:
    status, out, err = run(*words.split())
    assert (status, out) == (1, "")
    assert "Traceback" not in err
    (line,) = (line for line in err.splitlines() if line.startswith("error: "))
    assert re.match(f"error: {message}", line)


def test_in_a_container_it_is_said_who_shows_what_services_write(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_SETTINGS", "/run/secrets/settings")
    status, out, err = run("logs", "speed", "-f")
    assert (status, out) == (1, "")
    assert "docker compose logs -n 50 -f speed" in err


@pytest.mark.parametrize("words", ["up", "down", "restore"])
def test_with_the_settings_of_one_identity_nobody_starts_or_ends_a_platform(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("ANABRANCH_SETTINGS", "/somewhere/analyst.json")
    status, out, err = run(words)
    assert (status, out) == (1, "")
    assert "ANABRANCH_SETTINGS is set (/somewhere/analyst.json): " in err


@pytest.mark.parametrize("words", ["publish", "rollback", "release", "generation list"])
def test_a_database_that_does_not_answer_is_one_message(run: Run, words: str) -> None:
    status, _, err = run(*words.split())
    assert status == 1
    assert err.startswith("error: ")


@pytest.mark.parametrize("error", [TerminalError("what, where, what next"), ConflictError("somebody else was first")])
def test_every_error_of_the_platform_becomes_its_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: AnabranchError
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("infra.platform.status", fails)
    assert run("status", "--json") == (1, "", f"error: {error}\n")


def test_an_interruption_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("infra.platform.status", interrupted)
    status, _, err = run("status")
    assert status == 130
    assert "Traceback" not in err


def test_what_needs_no_service_answers_without_one(run: Run) -> None:
    status, out, _ = run("views")
    assert status == 0
    assert "revenue" in out
    assert run("down")[0] == 0
    status, out, _ = run("schema", "check")
    assert (status, out) == (0, "compatible with what was released\n")
