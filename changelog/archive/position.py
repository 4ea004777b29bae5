"""Up to where the log is stored, whoever stores it: our archiver, several of them, or Secor."""

from changelog.positions import Vector
from changelog.topics import committed_offsets
from runtime.settings import Settings


def stored_offsets(settings: Settings) -> Vector:
    """Up to where the archive holds the log: what the archivers' consumer group has committed, and nothing is committed
    before it is stored. A topic-partition of which nothing was stored yet is left out.

    Secor does not commit past a marker of a transaction, so with it the last offset may stay open for good. Raises
    TransientError if Kafka does not answer.
    """
    return committed_offsets(settings, settings.archiver.group, settings.topics)
