"""Traffic in overlapping windows: an hour long, one every quarter of an hour."""

from views.algebra import Field
from views.derived import Derived

DERIVED = Derived(
    name="traffic_hopping",
    comment="Events and guests in windows of an hour, one every 15 minutes, and the change against the hour before",
    columns=(
        Field("window_start", "timestamp(6) with time zone", "beginning of the window, UTC"),
        Field("window_end", "timestamp(6) with time zone", "its end, exclusive"),
        Field("type", "varchar", "VIEW, SEARCH, ADD, …"),
        Field("channel", "varchar", "WEB, MOBILE, EMAIL or CALL_CENTER"),
        Field("events", "bigint", "number of events in the window"),
        Field("guests", "bigint", "about how many guests they are of"),
        Field("events_hour_before", "bigint", "number of events in the window an hour before"),
        Field("change", "double", "events / events_hour_before - 1; null where there were none"),
    ),
    sql="""
SELECT window_start, window_start + INTERVAL '1' HOUR AS window_end, type, channel, events, guests,
  events_hour_before, events / nullif(CAST(events_hour_before AS double), 0) - 1 AS change
FROM (
  SELECT window_start, type, channel, events, guests,
    coalesce(sum(events) OVER (PARTITION BY type, channel ORDER BY window_start
      RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND INTERVAL '1' HOUR PRECEDING), 0) AS events_hour_before
  FROM (
    SELECT hop AS window_start, type, channel, sum(rows) AS events,
      cardinality(merge(CAST(guests AS HyperLogLog))) AS guests
    FROM (
      SELECT type, channel, rows, guests,
        date_trunc('hour', minute) + INTERVAL '15' MINUTE * (minute(minute) / 15) AS pane
      FROM {traffic_states} WHERE rows <> 0
    )
    CROSS JOIN UNNEST(ARRAY[
      pane, pane - INTERVAL '15' MINUTE, pane - INTERVAL '30' MINUTE, pane - INTERVAL '45' MINUTE]) AS w(hop)
    GROUP BY hop, type, channel
  )
)
""",
)
