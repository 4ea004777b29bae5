"""Every error the platform raises on purpose. The type says whether trying again can help."""


class AnabranchError(Exception):
    """Base of all errors that carry a message for the operator: what happened, where, and what to do next."""


class TerminalError(AnabranchError):
    """Trying again gives the same result: the input, the configuration or the request has to change first."""


class TransientError(AnabranchError):
    """Something outside was not ready or was in the way: the same call may succeed later."""


class PreflightError(TerminalError):
    """The machine lacks something that the platform needs. The message says what, and how to get it."""


class ContractError(TerminalError):
    """Number of partitions, topic id, code version or checkpoint differ from what was agreed when it began."""


class LostStateError(ContractError):
    """State without which a generation of the speed layer cannot go on is lost. A new generation makes it anew, from
    archive and log; ``cause`` names what was lost, in one word."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class ArchiveError(TerminalError):
    """An archive object cannot be what it claims to be: empty, truncated, or not in the format."""


class RetentionError(TerminalError):
    """Kafka no longer has the offset at which a reader stands."""


class HoleError(TerminalError):
    """Offsets are missing from the archive and Kafka no longer has them."""


class DefinitionError(TerminalError):
    """A view's definition asks for something that cannot be exact. Raised when the view is defined."""


class QualityError(TerminalError):
    """The archive is not what a publication may be built on: offsets missing or twice, or too many bad records."""


class HeldError(TerminalError):
    """Publication is held by a rollback. ``anabranch release`` lets it go on."""


class BehindError(TerminalError):
    """A run that would move the boundary back. What is served is newer."""


class ArchiveBehindError(TransientError):
    """The columnar archive does not reach up to where Kafka's log begins yet. The next ingest may bring what lacks."""


class ConflictError(TransientError):
    """Somebody else wrote first; nothing of ours was written. Running the same command again is safe."""
