"""What a build is to do, as options on a command line say it. Needs no Spark, so a wrong plan is refused at once."""

import argparse
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from changelog.positions import Vector, from_json
from runtime.errors import TerminalError

SERVED_LOCATION = "batch"
"""Where runs that can be published are. Another location is a namespace of its own, which is never served."""

RESERVED = ("archive", "ops", "scratch", "serving", "speed", "system", "information_schema")


@dataclass(frozen=True)
class Plan:
    """What to build. ``views``: all of the pipeline if empty; a run that leaves views out is published for the named
    ones only. ``objects``: read the raw objects and judge every record anew, not the columnar archive. ``location``:
    fold into ``<location>.<view>_states``, beside everything that is served. ``since``: fold only records from this
    vector, or this append time, on (into a location of its own). ``erasures``: only for a generation
    that has taken in the erasures up to this one."""

    full: bool = False
    views: tuple[str, ...] = ()
    run_id: str | None = None
    pipeline: str = "main"
    objects: bool = False
    location: str = SERVED_LOCATION
    since: Vector | datetime | None = None
    erasures: int = 0

    def __post_init__(self) -> None:
        beside = self.location != SERVED_LOCATION
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}", self.location) or self.location in RESERVED:
            raise TerminalError(
                f"location {self.location!r}: a name of its own is needed, in lower case letters, digits and _; taken "
                f"are {', '.join(RESERVED)}"
            )
        if self.since is not None and not beside:
            raise TerminalError("what begins in the middle of the log can never be served: give it a --location")
        if self.run_id is not None and not re.fullmatch(r"[A-Za-z0-9_]{1,100}", self.run_id):
            raise TerminalError(f"run id {self.run_id!r}: letters, digits and _ only")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a build, shared by the jobs that build."""
    parser.add_argument("--full", action="store_true", help="fold from nothing, not from what is served")
    parser.add_argument("--view", action="append", default=[], help="only this view (repeatable)")
    parser.add_argument("--run-id", help="name of the run; the same name again replaces it")
    parser.add_argument("--objects", action="store_true", help="fold the raw objects, not the columnar archive")
    parser.add_argument("--location", default=SERVED_LOCATION, help="fold into tables of this name, never served")
    parser.add_argument("--erasures", type=int, default=0, help="for a generation that has taken in these, 1 to N")
    parser.add_argument("--since", help="with --location: a vector as JSON, or an append time in ISO 8601 (UTC)")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the options say. Raises TerminalError for one that makes no sense."""
    return Plan(
        arguments.full,
        tuple(arguments.view),
        arguments.run_id,
        objects=arguments.objects,
        location=arguments.location,
        since=parse_since(arguments.since),
        erasures=arguments.erasures,
    )


def parse_since(text: str | None) -> Vector | datetime | None:
    """``{"changelog.order": {"0": 12}}`` or ``2026-05-01T00:00:00Z``. Raises TerminalError for anything else."""
    if not text:
        return None
    try:
        if text.lstrip().startswith("{"):
            vector = from_json(json.loads(text))
            if not all(type(offset) is int and offset >= 0 for parts in vector.values() for offset in parts.values()):
                raise ValueError("offsets are whole numbers from 0 on")
            return vector
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, TypeError, AttributeError) as error:
        raise TerminalError(
            f'position {text!r} ({error}): give a vector, such as {{"changelog.order": {{"0": 12}}}}, or a time, '
            "such as 2026-05-01T00:00:00Z"
        ) from error
