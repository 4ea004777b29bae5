"""The list of erasures, in the operations database: numbered from 1 on without a gap, and never taken back."""

import contextlib
import time

import psycopg

from changelog.erased import NOBODY, Erased, digest
from runtime import ops
from runtime.errors import ContractError, TransientError
from runtime.settings import Settings

SERVED = "SELECT coalesce(min(g.erasures), 0) AS erasures FROM served JOIN generations g USING (pipeline, generation)"
"""The erasures that everything served has taken in: those of the generations that it stands on."""

REFRESH_SECONDS = 5.0


def recorded(settings: Settings, connection: ops.Connection, upto: int | None = None, pending: bool = True) -> Erased:
    """The erasures 1 … ``upto``; by default all. ``pending``: with the refs, in clear, of those that are not finished:
    who reads the columnar archive needs them, and others may not ask for them.

    Raises ContractError if they were made with another secret: nobody could tell whom they are of.
    """
    rows = connection.execute(
        f"SELECT erasure, digest, secret_check, names{', ref' if pending else ''} FROM erasures "
        "WHERE %(upto)s::int IS NULL OR erasure <= %(upto)s ORDER BY erasure",
        {"upto": upto},
    ).fetchall()
    if not rows:
        return NOBODY
    secret = secret_of(settings)
    if any(row["secret_check"] != check_of(secret) for row in rows):
        raise ContractError(
            "the list of erased guests was made with another erasure_secret than the settings have: without it they "
            "would come back. Restore settings.json"
        )
    refs = tuple(row["ref"] for row in rows if row.get("ref") is not None)
    names = {name: length for row in rows for name, length in row["names"].items()}
    return Erased(
        secret, frozenset(row["digest"] for row in rows), refs, rows[-1]["erasure"],
        frozenset(map(bytes.fromhex, names)), tuple(sorted(set(names.values()))),
    )  # fmt: skip


def served(settings: Settings, connection: ops.Connection, pending: bool = True) -> Erased:
    """The erasures that everything served has taken in. What is stored for good leaves these out, and no others: a
    batch side that counts somebody can still be built from it."""
    return recorded(settings, connection, served_number(connection), pending)


def served_number(connection: ops.Connection) -> int:
    """The last of the erasures that everything served has taken in."""
    row = connection.execute(SERVED).fetchone()
    return int(row["erasures"]) if row else 0


def last_number(connection: ops.Connection) -> int:
    """The last erasure there is; 0 before the first."""
    row = connection.execute("SELECT coalesce(max(erasure), 0) AS erasure FROM erasures").fetchone()
    return int(row["erasure"]) if row else 0


def secret_of(settings: Settings) -> bytes:
    """The key of the hashes. Raises ContractError if the settings have none."""
    secret = settings.erasure_secret.get_secret_value()
    if not secret:
        raise ContractError("settings: erasure_secret is empty; anabranch up generates one in settings.json")
    return secret.encode()


def check_of(secret: bytes) -> bytes:
    """What tells one secret from another."""
    return digest(secret, b"\0check")


class Watched:
    """The list as it grows, for a service: asked anew every few seconds. A database that is away is no reason to stop
    once it has answered."""

    def __init__(self, settings: Settings, only_served: bool = False) -> None:
        """``only_served``: as :func:`served`. Raises TransientError if the operations database does not answer."""
        self._settings = settings
        self._only_served = only_served
        self._erased = self._read()
        self._read_at = time.monotonic()

    def now(self) -> Erased:
        """The erasures, as they were a few seconds ago at most."""
        if time.monotonic() - self._read_at > REFRESH_SECONDS:
            self._read_at = time.monotonic()
            with contextlib.suppress(TransientError):  # heartbeats tell of it
                self._erased = self._read()
        return self._erased

    def _read(self) -> Erased:
        try:
            with ops.connect(self._settings) as connection:
                if self._only_served:
                    return served(self._settings, connection, pending=False)
                return recorded(self._settings, connection, pending=False)
        except psycopg.Error as error:
            raise TransientError(f"the operations database did not answer: {error}") from error
