"""Every session as it is now."""

from views.algebra import Field
from views.latest import Latest

VIEW = Latest(
    name="session_latest",
    comment="The newest version of every session that has not been deleted",
    entity="session",
    columns=(
        Field("channel", "string", "WEB, MOBILE, EMAIL or CALL_CENTER"),
        Field("started_at", "timestamp", "when it began"),
        Field("ended_at", "timestamp", "when it ended; null while it lasts"),
        Field("modified_at", "timestamp", "when the shop says it last changed"),
    ),
)
