"""What is known of each guest, in one row."""

from views.algebra import Field
from views.derived import Derived

DERIVED = Derived(
    name="guest",
    comment="Every guest with what it spent in each currency and its last session",
    columns=(
        Field("ref", "varchar", "the guest"),
        Field("first_name", "varchar", "given name, where known", personal=True),
        Field("last_name", "varchar", "family name, where known", personal=True),
        Field("email", "varchar", "e-mail address, where known", personal=True),
        Field("country", "varchar", "country of the guest, where known"),
        Field("created_at", "timestamp(6) with time zone", "when the guest was first seen"),
        Field("orders", "bigint", "orders that are not cancelled, in all currencies"),
        Field("spend", "map(varchar, decimal(38,4))", "value of those orders, by currency"),
        Field("last_session_ref", "varchar", "the session that began last"),
        Field("last_session_at", "timestamp(6) with time zone", "when it began"),
        Field("last_channel", "varchar", "WEB, MOBILE, EMAIL or CALL_CENTER"),
    ),
    sql="""
SELECT g.ref, g.first_name, g.last_name, g.email, g.country, g.created_at, coalesce(s.orders, 0) AS orders,
  coalesce(s.spend, map()) AS spend, l.ref AS last_session_ref, l.started_at AS last_session_at,
  l.channel AS last_channel
FROM {guest_latest} g
LEFT JOIN (
  SELECT guest_ref, sum(orders) AS orders, map_agg(currency, total_spend) AS spend FROM {guest_spend} GROUP BY guest_ref
) s ON s.guest_ref = g.ref
LEFT JOIN (
  SELECT *, row_number() OVER (PARTITION BY guest_ref ORDER BY started_at DESC, ref) AS number FROM {session_latest}
) l ON l.guest_ref = g.ref AND l.number = 1
""",
)
