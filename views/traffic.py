"""What guests do, by minute, type and channel."""

from views.aggregate import Aggregate, Count, Distinct
from views.algebra import Field, Key

VIEW = Aggregate(
    name="traffic",
    comment="Events by the minute in which they happened, type and channel",
    entity="event",
    keys=(
        Key(
            Field("minute", "timestamp", "minute in which the events happened, UTC"), "date_trunc('MINUTE', created_at)"
        ),
        Key(Field("type", "string", "VIEW, SEARCH, ADD, …"), "type"),
        Key(Field("channel", "string", "WEB, MOBILE, EMAIL or CALL_CENTER"), "channel"),
    ),
    measures=(
        Count("events", "number of events"),
        Distinct("guests", "guest_ref", "about how many guests they are of"),
    ),
)
