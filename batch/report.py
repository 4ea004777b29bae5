"""What an ingest says of itself, to people and to machines."""

import json
from dataclasses import asdict, dataclass, field

from runtime.errors import ArchiveError, HoleError
from runtime.ops import Connection

EXIT_INCOMPLETE = 3
"""Exit status of a batch run that is built and right as far as it goes, while objects are damaged or missing: somebody
has to look."""


@dataclass
class Report:
    """What an ingest did: records by kind, holes mended from Kafka, proven empty and lost, alarms, seconds."""

    records: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    mended: int = 0
    lost: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    archived: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0


def note(ops: Connection, report: Report) -> None:
    """Keep the report of the last ingest, for who publishes first and complains afterwards."""
    ops.execute(
        "INSERT INTO runs (run_id, kind, code_version, state, finished_at, detail) VALUES (':ingest', 'ingest', '', "
        "'done', now(), %s) ON CONFLICT (run_id) DO UPDATE SET (finished_at, detail) = (now(), excluded.detail)",
        (json.dumps(asdict(report)),),
    )


def last(ops: Connection) -> Report:
    """The report of the last ingest; an empty one before the first."""
    row = ops.execute("SELECT detail FROM runs WHERE run_id = ':ingest'").fetchone()
    return Report(**row["detail"]) if row else Report()


def complain(report: Report) -> None:
    """Raise HoleError or ArchiveError for what an ingest could not bring in; everything else is in the tables."""
    if report.lost:
        accept = " ".join(f"--accept-hole {hole}" for hole in report.lost)
        raise HoleError(
            f"missing from the archive, and Kafka no longer has them: {', '.join(report.lost)}. Restore their objects "
            f"and run this again, or declare them lost: anabranch batch {accept}"
        )
    if report.alarms:
        raise ArchiveError(
            "objects that cannot be read or are gone (what they still give, and what Kafka still has of the rest, is "
            "in objects beside them; restore them, or delete them): " + "; ".join(report.alarms)
        )
