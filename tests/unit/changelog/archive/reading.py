"""Reading an object that may be damaged."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from runtime.errors import ArchiveError

T = TypeVar("T")


def read_until_error(read: Callable[[bytes, str], Iterable[T]], data: bytes, name: str) -> tuple[list[T], str]:
    """What can be read, and the message of the ArchiveError after it ("" where there is none).

    Any other error passes through. Fails where the message does not begin with the object's name.
    """
    found: list[T] = []
    message = ""
    try:
        for item in read(data, name):
            found.append(item)
    except ArchiveError as error:
        message = str(error)
    assert message == "" or message.startswith(f"{name}: "), f"the object is not named: {message}"
    return found, message
