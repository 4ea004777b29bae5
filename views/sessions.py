"""What guests do in one go: their events without a pause of half an hour."""

from views.sessionization import Sessions

VIEW = Sessions(
    name="sessions",
    comment="Events of a guest that are less than 30 minutes apart",
    entity="event",
    gap_seconds=1800,
)
