"""What is noted of dead letters that were mended: ``dead_letter_replays`` of the operations database.

A note without ``replayed_at`` was made before its record was sent, and nobody came back to say that it was.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from changelog.dead_letters import Mended
from changelog.records import Identity, Place
from runtime.ops import Connection


class Note(NamedTuple):
    """``place``: the dead letter; ``to``: what it became, None while that is not known."""

    place: Place
    append_time: datetime
    identity: Identity
    ref: str
    to: Place | None


class Notes:
    """The notes, read once; kept as they are in the table. To be used under the lock of the replay."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT * FROM dead_letter_replays").fetchall()
        self._notes = {
            (place := Place(row["topic"], row["kafka_partition"], row["kafka_offset"])): Note(
                place,
                row["appended_at"],
                Identity(row["to_topic"], bytes(row["key"]), row["service_name"], row["identifier"]),
                row["ref"],
                Place(row["to_topic"], row["to_partition"], row["to_offset"]) if row["replayed_at"] else None,
            )
            for row in rows
        }

    def get(self, place: Place) -> Note | None:
        """What is noted of a dead letter."""
        return self._notes.get(place)

    def open(self) -> list[Note]:
        """Notes of which it is not known whether their record was sent."""
        return [note for note in self._notes.values() if note.to is None]

    def done(self) -> list[Note]:
        """Notes of what was sent."""
        return [note for note in self._notes.values() if note.to is not None]

    def settle(self, places: Mapping[Identity, Place]) -> None:
        """Finish the open notes, knowing where in the log each identity is: what is nowhere was never sent."""
        for note in self.open():
            if to := places.get(note.identity):
                self.sent({note.place: to})
            else:
                self._connection.execute(
                    "DELETE FROM dead_letter_replays WHERE topic = %s AND kafka_partition = %s AND kafka_offset = %s",
                    note.place,
                )
                del self._notes[note.place]

    def begin(self, letters: Sequence[tuple[Mended, datetime]]) -> None:
        """Note what is about to be sent, with the times of the dead letters; all or nothing."""
        made = [Note(one.place, time, one.identity, one.ref, None) for one, time in letters]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO dead_letter_replays (topic, kafka_partition, kafka_offset, appended_at, to_topic, key, "
                "service_name, identifier, ref) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                [(*note.place, note.append_time, *note.identity, note.ref) for note in made],
            )
        self._notes |= {note.place: note for note in made}

    def sent(self, places: Mapping[Place, Place]) -> None:
        """Note what dead letters became."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(
                "UPDATE dead_letter_replays SET to_partition = %s, to_offset = %s, replayed_at = now() "
                "WHERE topic = %s AND kafka_partition = %s AND kafka_offset = %s",
                [(to.partition, to.offset, *place) for place, to in places.items()],
            )
        for place, to in places.items():
            self._notes[place] = self._notes[place]._replace(to=to)
