"""Every guest as it is now."""

from views.algebra import Field
from views.latest import Latest

VIEW = Latest(
    name="guest_latest",
    comment="The newest version of every guest that has not been deleted",
    entity="guest",
    columns=(
        Field("first_name", "string", "given name, where known", personal=True),
        Field("last_name", "string", "family name, where known", personal=True),
        Field("email", "string", "e-mail address, where known", personal=True),
        Field("country", "string", "country of the guest, where known"),
        Field("created_at", "timestamp", "when the guest was first seen"),
        Field("modified_at", "timestamp", "when the shop says it last changed"),
    ),
)
