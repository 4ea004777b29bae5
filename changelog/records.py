"""How single records of the log are told: by their place, and changes by their identity."""

from typing import NamedTuple


class Place(NamedTuple):
    """Where a record is in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Identity(NamedTuple):
    """What a change and its copies share."""

    topic: str
    key: bytes
    service: str
    identifier: str
