"""What a service of the local platform is."""

from dataclasses import dataclass, field

from pydantic import SecretStr


@dataclass(frozen=True)
class Service:
    """One supervised process. ``stop_seconds``: how long it may take to end by itself. ``login``: user and password
    of its interface, for ``anabranch status``. ``identity``: as whom it logs in elsewhere."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    url: str = ""
    stop_signal: str = "TERM"
    stop_seconds: int = 20
    stop_group: bool = False
    restarts_on_78: bool = True
    identity: str = ""
    login: tuple[str, SecretStr] | None = None
