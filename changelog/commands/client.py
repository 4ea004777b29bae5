"""For whoever wants something: send a command, and wait for what became of it."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from changelog.commands.outcome import Outcome, Place, parse_outcome
from changelog.commands.schema import COMMANDS, OUTCOMES, command_topic, violations
from changelog.envelope import encode
from changelog.producer import ChangelogProducer, Record
from changelog.reader import Reader
from changelog.topics import end_offsets
from runtime.errors import TerminalError, TransientError
from runtime.settings import Settings


class Sent(NamedTuple):
    """Where a command is, and from which offset on its outcome will be in that partition of ``command.outcomes``."""

    place: Place
    since: int


def send(settings: Settings, name: str, command: Mapping[str, Any]) -> Sent:
    """Send a command and wait until Kafka has it. With an id that was sent before it is the same command again.

    Raises TerminalError for one whose form is wrong (nothing is sent, its id is not spent), TransientError if Kafka
    does not take it.
    """
    if name not in COMMANDS:
        raise TerminalError(f"there is no command {name!r}; there are {', '.join(COMMANDS)}")
    value = encode(dict(command))
    if wrong := violations(name, orjson.loads(value)):
        raise TerminalError(f"{name} was not sent: " + "; ".join(wrong))
    since = end_offsets(settings, [OUTCOMES])[OUTCOMES]
    topic = command_topic(name)
    with ChangelogProducer(settings) as producer:
        producer.send(Record(topic, command["guestRef"].encode(), value))
    ((partition, end),) = producer.ends[topic].items()
    return Sent(Place(topic, partition, end - 1), since[partition])


def await_outcome(settings: Settings, sent: Sent, timeout_seconds: float = 30.0) -> Outcome:
    """The outcome of a command that was sent. Raises TransientError if there is none in time; asking again waits on."""
    deadline = time.monotonic() + timeout_seconds
    with Reader(settings, {OUTCOMES: {sent.place.partition: sent.since}}, wait_ms=100) as reader:
        while (left := deadline - time.monotonic()) > 0:
            for entry in reader.read(min(left, 0.5)):
                outcome = parse_outcome(entry.value or b"")
                if outcome.source == sent.place:
                    return outcome
    raise TransientError(
        f"no outcome of {sent.place} within {timeout_seconds:.0f} s; does the service commands run? anabranch status. "
        "The command is kept and will be answered; the same id sent again tells the answer, and does nothing twice"
    )
