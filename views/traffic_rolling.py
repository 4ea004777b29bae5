"""Traffic minute by minute beside what it was around then and before."""

from views.algebra import Field
from views.derived import Derived

_KEYS = "PARTITION BY type, channel ORDER BY minute"

DERIVED = Derived(
    name="traffic_rolling",
    comment="Events of each minute with sliding windows of 15 minutes and the same minute a day and a week before",
    columns=(
        Field("minute", "timestamp(6) with time zone", "minute in which the events happened, UTC"),
        Field("type", "varchar", "VIEW, SEARCH, ADD, …"),
        Field("channel", "varchar", "WEB, MOBILE, EMAIL or CALL_CENTER"),
        Field("events", "bigint", "number of events of the minute"),
        Field("events_15m", "bigint", "of the 15 minutes that end with this one"),
        Field("guests_15m", "bigint", "about how many guests those are of"),
        Field("average_15m", "double", "events a minute over those 15 minutes"),
        Field("events_previous_15m", "bigint", "of the 15 minutes before those"),
        Field("change_15m", "double", "events_15m / events_previous_15m - 1; null where there were none"),
        Field("events_day_before", "bigint", "of the same minute a day before"),
        Field("events_week_before", "bigint", "of the same minute a week before"),
    ),
    sql=f"""
SELECT minute, type, channel, events, events_15m, guests_15m, events_15m / 15e0 AS average_15m, events_previous_15m,
  events_15m / nullif(CAST(events_previous_15m AS double), 0) - 1 AS change_15m, events_day_before, events_week_before
FROM (
  SELECT minute, type, channel, rows AS events,
    sum(rows) OVER ({_KEYS} RANGE BETWEEN INTERVAL '14' MINUTE PRECEDING AND CURRENT ROW) AS events_15m,
    cardinality(merge(CAST(guests AS HyperLogLog)) OVER (
      {_KEYS} RANGE BETWEEN INTERVAL '14' MINUTE PRECEDING AND CURRENT ROW)) AS guests_15m,
    coalesce(sum(rows) OVER ({_KEYS}
      RANGE BETWEEN INTERVAL '29' MINUTE PRECEDING AND INTERVAL '15' MINUTE PRECEDING), 0) AS events_previous_15m,
    coalesce(sum(rows) OVER ({_KEYS}
      RANGE BETWEEN INTERVAL '1' DAY PRECEDING AND INTERVAL '1' DAY PRECEDING), 0) AS events_day_before,
    coalesce(sum(rows) OVER ({_KEYS}
      RANGE BETWEEN INTERVAL '7' DAY PRECEDING AND INTERVAL '7' DAY PRECEDING), 0) AS events_week_before
  FROM {{traffic_states}} WHERE rows <> 0
)
""",
)
