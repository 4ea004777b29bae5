"""Capture as a whole: that connector, slot and first snapshot are there, and how to begin anew where something is lost.

Whoever is killed in the middle of it runs it again: the slot is made last, and as long as it is missing everything
before it is done once more.
"""

from collections.abc import Callable, Sequence
from typing import Any

from changelog.sources.cdc import database, stream
from changelog.sources.cdc.connect import Connect, configuration
from changelog.sources.cdc.mapping import ENTITY, TABLES
from runtime.errors import TerminalError
from runtime.settings import Settings

Say = Callable[[str], None]

FIRST = "first"
"""The request for the snapshot that a life of the stream begins with."""


def ensure(settings: Settings, say: Say) -> None:
    """Have the connector run as it is configured, from a slot that is whole. A second call changes nothing.

    A slot that is missing or lost is made anew, with a snapshot of everything. Raises TransientError if Connect,
    PostgreSQL or Kafka do not answer or the connector does not run, TerminalError where that would delete everything.
    """
    connect = Connect(settings)
    with database.connect(settings) as shop:
        slot = database.slot(shop, settings.cdc.slot)
        if slot is None and database.is_empty(shop, TABLES) and stream.committed(settings) is not None:
            raise TerminalError(
                f"the shop's database {settings.cdc.database.name} is empty and its replication slot is gone, as if it "
                "had been made anew. Restore it and run this again; if it is to be empty, and what the log has of it "
                "to be deleted: anabranch cdc anew"
            )
        if slot is None or slot.lost:
            begin(settings, connect, shop, say)
        _run(settings, connect, shop)


def anew(settings: Settings, say: Say) -> None:
    """Begin another life of the stream: a new slot, and everything read again. What has not changed is not written.

    Changes of the shop's meanwhile are in the snapshot. Raises TransientError as :func:`ensure` does.
    """
    connect = Connect(settings)
    with database.connect(settings) as shop:
        begin(settings, connect, shop, say)
        _run(settings, connect, shop)


def snapshot(settings: Settings, tables: Sequence[str]) -> str:
    """Ask for a snapshot of tables, by default of all, beside the stream. Returns the request's id.

    Tables whose rows make one entity are read together. Raises TerminalError for a table that is not captured.
    """
    if unknown := set(tables) - set(TABLES):
        raise TerminalError(f"{', '.join(sorted(unknown))}: not captured; there are {', '.join(TABLES)}")
    entities = {ENTITY[table] for table in tables or TABLES}
    with database.connect(settings) as shop:
        return database.request_snapshot(shop, [table for table in TABLES if ENTITY[table] in entities])


def begin(settings: Settings, connect: Connect, shop: database.Connection, say: Say) -> None:
    """Stop the connector, let it forget where it was, say in the stream that another life begins, make the slot."""
    if connect.state() is not None:
        connect.stop()
        connect.forget_offsets()
    database.await_idle(shop, settings.cdc.slot)  # or what it still sends would count to the new life
    shop.execute(f"DELETE FROM {database.SIGNALS}")
    at = stream.announce(settings)
    found = stream.committed(settings)
    if found is None or found[0] < stream.bounds(settings)[0]:
        stream.commit(settings, at)  # where the mapper was is lost, or no longer there
    say(
        f"replication slot {settings.cdc.slot} at {database.make_slot(shop, settings.cdc.slot)}; the shop is read whole"
    )


def _run(settings: Settings, connect: Connect, shop: database.Connection) -> None:
    connect.put(configuration(settings, TABLES))
    connect.resume()
    connect.restart_failed()
    connect.await_state("RUNNING", "RUNNING")
    database.request_snapshot(shop, TABLES, FIRST)


def look(settings: Settings) -> dict[str, Any]:
    """``{"connector", "slot"}``: what they are now, for people and alerts; an error as text where one does not answer.

    A connector or task that has failed is started again.
    """
    said: dict[str, Any] = {"connector": None, "slot": None}
    try:
        connect = Connect(settings)
        said["connector"] = connect.state()
        if said["connector"] and "FAILED" in (said["connector"]["connector"], said["connector"]["task"]):
            connect.restart_failed()
    except Exception as error:  # shown, and asked again
        said["connector"] = {"connector": "UNREACHABLE", "task": "UNKNOWN", "error": str(error)}
    try:
        with database.connect(settings) as shop:
            slot = database.slot(shop, settings.cdc.slot)
            said["slot"] = None if slot is None else vars(slot)
    except Exception as error:  # shown, and asked again
        said["slot"] = {"error": str(error)}
    return said
