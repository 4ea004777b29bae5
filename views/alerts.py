"""All alerts, with what is known of the guest."""

from views.algebra import Field
from views.derived import Derived

_PATTERNS = {"cancellations": "order", "cart_abandoned": "event", "large_first_order": "order"}

_UNION = "\n  UNION ALL\n  ".join(
    f"SELECT '{name}' AS pattern, 'changelog.{entity}' AS source_topic, * FROM {{{name}}}"
    for name, entity in _PATTERNS.items()
)

DERIVED = Derived(
    name="alerts",
    comment="Alerts of all patterns with what is known of the guest now",
    columns=(
        Field("pattern", "varchar", "the view that found it"),
        Field("guest_ref", "varchar", "the guest"),
        Field("at", "timestamp(6) with time zone", "the broker's time of the record that gave rise to it"),
        Field("detail", "varchar", "what more there is to say, JSON"),
        Field("first_name", "varchar", "given name of the guest, where known", personal=True),
        Field("last_name", "varchar", "family name, where known", personal=True),
        Field("country", "varchar", "country, where known"),
        Field("source_topic", "varchar", "topic of the record"),
        Field("source_partition", "integer", "its partition"),
        Field("source_offset", "bigint", "its offset"),
    ),
    sql=f"""
SELECT a.pattern, a.guest_ref, a.at, a.detail, g.first_name, g.last_name, g.country, a.source_topic,
  a.source_partition, a.source_offset
FROM (
  {_UNION}
) a
LEFT JOIN {{guest_latest}} g ON g.ref = a.guest_ref
""",
)
