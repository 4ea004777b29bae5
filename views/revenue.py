"""Revenue by hour, country and currency; cancelled orders do not count."""

from views.aggregate import Aggregate, Average, Count, Quantiles, Sum
from views.algebra import Field, Key

REVENUE = Sum("revenue", "total", "sum of the orders' totals, in the currency of the row")

VIEW = Aggregate(
    name="revenue",
    comment="Orders and their value by the hour in which they were placed, country and currency",
    entity="order",
    where="status <> 'CANCELLED'",
    keys=(
        Key(Field("hour", "timestamp", "hour in which the orders were placed, UTC"), "date_trunc('HOUR', created_at)"),
        Key(Field("country", "string", "country of the orders, where known"), "country"),
        Key(Field("currency", "string", "ISO 4217 code"), "currency"),
    ),
    measures=(
        Count("orders", "orders that are not cancelled"),
        REVENUE,
        Average("average_order_value", REVENUE, "revenue / orders"),
        Quantiles(
            "order_value", "total", {"p50_order_value": 0.5, "p95_order_value": 0.95}, "quantile of the orders' totals"
        ),
    ),
)
