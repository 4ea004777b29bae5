"""What each guest has ordered; cancelled orders do not count."""

from views.aggregate import Aggregate, Count, Sum
from views.algebra import Field, Key

VIEW = Aggregate(
    name="guest_spend",
    comment="Orders and their value by guest and currency",
    entity="order",
    where="status <> 'CANCELLED'",
    keys=(
        Key(Field("guest_ref", "string", "the guest"), "guest_ref"),
        Key(Field("currency", "string", "ISO 4217 code"), "currency"),
    ),
    measures=(
        Count("orders", "orders that are not cancelled"),
        Sum("total_spend", "total", "sum of the orders' totals, in the currency of the row"),
    ),
)
