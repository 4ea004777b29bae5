"""The best selling products of each day."""

from views.algebra import Field
from views.derived import Derived

DERIVED = Derived(
    name="top_products",
    comment="Products by revenue within a day and currency; rank 1 sold most",
    columns=(
        Field("day", "date", "day on which the orders were placed, UTC"),
        Field("currency", "varchar", "ISO 4217 code"),
        Field("rank", "bigint", "1 for the product with the highest revenue; equal revenues have equal ranks"),
        Field("sku", "varchar", "the product"),
        Field("quantity", "decimal(38,4)", "pieces ordered"),
        Field("revenue", "decimal(38,4)", "quantity times unit price, in the currency of the row"),
    ),
    sql="""
SELECT day, currency, rank() OVER (PARTITION BY day, currency ORDER BY revenue DESC) AS rank, sku, quantity, revenue
FROM {product_sales}
""",
)
