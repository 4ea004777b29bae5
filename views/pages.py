"""Which pages guests look at, by the hour."""

from views.aggregate import Aggregate, Count, First, Largest, Last, Smallest, TopK
from views.algebra import Field, Key

VIEW = Aggregate(
    name="pages",
    comment="The most visited pages of each hour and channel",
    entity="event",
    where="page IS NOT NULL",
    keys=(
        Key(Field("hour", "timestamp", "hour in which the events happened, UTC"), "date_trunc('HOUR', created_at)"),
        Key(Field("channel", "string", "WEB, MOBILE, EMAIL or CALL_CENTER"), "channel"),
    ),
    measures=(
        Count("events", "number of events that name a page"),
        TopK("top_pages", "page", 10, "the ten most visited pages, each with its number of events"),
        Smallest("first_at", "created_at", "timestamp", "the first of those events"),
        Largest("last_at", "created_at", "timestamp", "the last of them"),
        First("first_page", "page", "created_at", "string", "the page of the first"),
        Last("last_page", "page", "created_at", "string", "the page of the last"),
    ),
)
