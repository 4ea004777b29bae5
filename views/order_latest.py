"""Every order as it is now."""

from views.algebra import Field
from views.latest import Latest

VIEW = Latest(
    name="order_latest",
    comment="The newest version of every order that has not been deleted",
    entity="order",
    columns=(
        Field("session_ref", "string", "the session it was placed in, where known"),
        Field("status", "string", "PLACED, PAID, SHIPPED, DELIVERED or CANCELLED"),
        Field("currency", "string", "ISO 4217 code"),
        Field("country", "string", "country of the order, where known"),
        Field("total", "decimal(18,4)", "value of the order in its currency"),
        Field(
            "items",
            "array<struct<sku: string, name: string, quantity: decimal(18,4), unit_price: decimal(18,4)>>",
            "what was ordered",
        ),
        Field("created_at", "timestamp", "when the order was placed"),
        Field("modified_at", "timestamp", "when the shop says it last changed"),
    ),
)
