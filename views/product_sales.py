"""What was sold of each product; cancelled orders do not count."""

from views.aggregate import Aggregate, Sum
from views.algebra import Field, Key

VIEW = Aggregate(
    name="product_sales",
    comment="Quantity and value of what was ordered, by the day of the order, product and currency",
    entity="order",
    where="status <> 'CANCELLED'",
    unnest="items",
    defers=True,
    keys=(
        Key(Field("day", "date", "day on which the orders were placed, UTC"), "to_date(created_at)"),
        Key(Field("sku", "string", "the product"), "item.sku"),
        Key(Field("currency", "string", "ISO 4217 code"), "currency"),
    ),
    measures=(
        Sum("quantity", "item.quantity", "pieces ordered"),
        Sum("revenue", "item.quantity * item.unit_price", "quantity times unit price, in the currency of the row"),
    ),
)
