"""What a command must be: one JSON Schema for each, ``changelog/commands/schemas/<name>.json``."""

import json
from functools import cache
from importlib import resources
from typing import Any

import jsonschema_rs

from runtime.settings import Settings

COMMANDS = ("place-order", "change-order", "cancel-order", "update-guest")

OUTCOMES = "command.outcomes"


def command_topic(name: str) -> str:
    """``place-order`` → ``command.place-order``."""
    return f"command.{name}"


def command_of(topic: str) -> str:
    """``command.place-order`` → ``place-order``."""
    return topic.removeprefix("command.")


def command_topics(settings: Settings) -> dict[str, dict[str, str]]:
    """Every topic of commands, and what its configuration has that the changelog's has not. Outcomes are kept for at
    least twice as long as commands: who is answered is never forgotten before what he asked."""
    day_ms = 24 * 3600 * 1000
    kept = max(settings.commands.remember_days * day_ms, 2 * settings.kafka.retention_ms)
    return {**{command_topic(name): {} for name in COMMANDS}, OUTCOMES: {"retention.ms": str(kept)}}


@cache
def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a command, whole. Raises FileNotFoundError for one that does not exist."""
    files = resources.files("changelog") / "commands" / "schemas"
    found: dict[str, Any] = json.loads((files / f"{name}.json").read_text())
    return found | {"$defs": json.loads((files / "common.json").read_text())["$defs"]}


@cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema(name))


def violations(name: str, command: Any) -> list[str]:
    """Everything that the schema has against a command, each with its place; empty if it is well-formed."""
    found = []
    try:
        errors = list(_validator(name).iter_errors(command))
    except ValueError as unsaid:  # it does not go as deep as the parser
        return [f"what is wrong cannot be told: {unsaid}"]
    for error in errors:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        message = error.message if len(error.message) <= 300 else error.message[:300] + "…"
        found.append(f"{message} (at ${path})")
    return found
