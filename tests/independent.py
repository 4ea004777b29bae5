"""The meaning of each view said once more, in DuckDB over the records of the log, for tests and benchmarks.

The queries know the log and nothing of folds, states or boundaries. DuckDB and Trino differ in everything but SQL.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import duckdb
import pyarrow as pa

from changelog.validation import check
from runtime.settings import entity_of
from tests.oracle import LogRecord

PREPARED = """
CREATE TABLE change AS SELECT * EXCLUDE value, value->'current' AS cur, value->'original' AS orig,
  coalesce(value->'current'->>'guestRef', value->'original'->>'guestRef', value->'current'->>'ref',
    value->'original'->>'ref') AS guest
FROM log QUALIFY row_number() OVER (PARTITION BY topic, key, value->'provenance'->>'serviceName',
  value->'provenance'->>'identifier' ORDER BY off) = 1;
UPDATE change SET cur = NULL WHERE json_type(cur) = 'NULL';
UPDATE change SET orig = NULL WHERE json_type(orig) = 'NULL';
CREATE TABLE latest AS SELECT topic, guest, coalesce(cur->>'ref', orig->>'ref') AS ref, cur FROM change
  QUALIFY row_number() OVER (PARTITION BY topic, guest, coalesce(cur->>'ref', orig->>'ref') ORDER BY off DESC) = 1;
DELETE FROM latest WHERE cur IS NULL;
CREATE TABLE orders AS SELECT guest, ref, cur, cur->>'status' AS status, cur->>'currency' AS currency,
  cur->>'country' AS country, (cur->>'total')::decimal(18,4) AS total,
  (cur->>'createdAt')::timestamptz AS ts FROM latest WHERE topic = 'changelog.order';
CREATE TABLE paid AS SELECT * FROM orders WHERE status <> 'CANCELLED';
CREATE TABLE event AS SELECT guest, part, off, time, (cur->>'createdAt')::timestamptz AS ts, cur->>'type' AS type,
  cur->>'channel' AS channel, cur->>'page' AS page, orig IS NULL AS made FROM change WHERE topic = 'changelog.event';
CREATE TABLE made AS SELECT guest, part, off, time, (cur->>'createdAt')::timestamptz AS ts,
  cur->>'currency' AS currency, (cur->>'total')::decimal(18,4) AS total FROM change
  WHERE topic = 'changelog.order' AND orig IS NULL AND cur IS NOT NULL;
CREATE TABLE cancelled AS SELECT guest, part, off, time FROM change WHERE topic = 'changelog.order' AND
  cur->>'status' = 'CANCELLED' AND coalesce(orig->>'status', '') <> 'CANCELLED';
"""

SAME: dict[str, tuple[str, str]] = {
    "order_latest": (
        "SELECT guest_ref, ref, status, country, currency, total, cardinality(items) FROM {0}",
        "SELECT guest, ref, status, country, currency, total, json_array_length(cur->'items') FROM orders",
    ),
    "guest_latest": (
        "SELECT ref, first_name, email, country FROM {0}",
        "SELECT ref, cur->>'firstName', cur->>'email', cur->>'country' FROM latest WHERE topic = 'changelog.guest'",
    ),
    "session_latest": (
        "SELECT guest_ref, ref, channel, to_unixtime(started_at) FROM {0}",
        "SELECT guest, ref, cur->>'channel', epoch((cur->>'startedAt')::timestamptz) FROM latest "
        "WHERE topic = 'changelog.session'",
    ),
    "revenue": (
        "SELECT to_unixtime(hour), country, currency, orders, revenue, CAST(average_order_value * 10000 AS bigint) "
        "FROM {0}",
        "SELECT epoch(date_trunc('hour', ts)), country, currency, count(*), sum(total), "
        # in whole numbers, half away from zero: DuckDB divides decimals as floating-point numbers
        "(sign(sum(total)) * ((2 * abs(sum(total) * 10000)::hugeint + count(*)) // (2 * count(*))))::bigint "
        "FROM paid GROUP BY ALL",
    ),
    "guest_spend": (
        "SELECT guest_ref, currency, orders, total_spend FROM {0}",
        "SELECT guest, currency, count(*), sum(total) FROM paid GROUP BY ALL",
    ),
    "product_sales": (
        "SELECT CAST(day AS varchar), sku, currency, quantity, revenue FROM {0}",
        "SELECT date_trunc('day', ts)::date::varchar, item->>'sku', currency, sum((item->>'quantity')::decimal(18,4)), "
        "sum(round((item->>'quantity')::decimal(18,4) * (item->>'unitPrice')::decimal(18,4), 4)) "
        "FROM (SELECT *, unnest((cur->'items')::json[]) AS item FROM paid) GROUP BY ALL",
    ),
    "traffic": (
        "SELECT to_unixtime(minute), type, channel, events FROM {0}",
        "SELECT epoch(date_trunc('minute', ts)), type, channel, count(*) FROM event GROUP BY ALL",
    ),
    "pages": (
        "SELECT to_unixtime(hour), channel, events, to_unixtime(first_at), to_unixtime(last_at) FROM {0}",
        "SELECT epoch(date_trunc('hour', ts)), channel, count(*), epoch(min(ts)), epoch(max(ts)) FROM event "
        "WHERE page IS NOT NULL GROUP BY ALL",
    ),
    "sessions": (
        "SELECT guest_ref, to_unixtime(started_at), to_unixtime(ended_at), events FROM {0}",
        "SELECT guest, epoch(min(ts)), epoch(max(ts)), count(*) FROM (SELECT *, sum(new) OVER (PARTITION BY guest "
        "ORDER BY ts, new DESC ROWS UNBOUNDED PRECEDING) AS session FROM (SELECT *, CASE WHEN ts - lag(ts) OVER "
        "(PARTITION BY guest ORDER BY ts) < INTERVAL 30 MINUTE THEN 0 ELSE 1 END AS new FROM event)) "
        "GROUP BY guest, session",
    ),
    "conversion": (
        "SELECT CAST(day AS varchar), type, channel, currency, orders, value FROM {0}",
        "SELECT date_trunc('day', ts)::date::varchar, type, channel, currency, count(*), sum(total) FROM (SELECT "
        "DISTINCT o.part, o.off, o.ts, o.total, o.currency, e.type, e.channel FROM made o JOIN event e ON e.guest = "
        "o.guest AND e.made AND e.ts BETWEEN o.ts - INTERVAL 1 HOUR AND o.ts AND abs(e.time - o.time) <= 4200000000 "
        "WHERE e.type IN ('VIEW', 'ADD', 'CHECKOUT')) GROUP BY ALL",
    ),
    "cancellations": (
        "SELECT guest_ref, source_partition, source_offset FROM {0}",
        "SELECT guest, part, off FROM cancelled a WHERE (SELECT count(*) FROM cancelled b WHERE b.guest = a.guest AND "
        "b.off <= a.off AND b.time BETWEEN a.time - 3600000000 AND a.time) = 3",
    ),
    "large_first_order": (
        "SELECT guest_ref, source_partition, source_offset FROM {0}",
        "SELECT guest, any_value(part), min(off) FROM made WHERE total >= 500 GROUP BY guest",
    ),
    "cart_abandoned": (
        "SELECT guest_ref, source_partition, source_offset FROM {0}",
        "SELECT guest, part, off FROM event a WHERE type = 'ADD' AND made AND time + 1800000000 < (SELECT min(t) FROM "
        "(SELECT max(l.time) AS t FROM log l WHERE l.part = a.part AND l.topic IN ('changelog.order', "
        "'changelog.event') GROUP BY l.topic)) AND NOT EXISTS (SELECT 1 FROM event b WHERE b.guest = a.guest AND "
        "b.type = 'ADD' AND b.off > a.off AND b.time <= a.time + 1800000000) AND NOT EXISTS (SELECT 1 FROM made o "
        "WHERE o.guest = a.guest AND o.time BETWEEN a.time AND a.time + 1800000000)",
    ),
    "top_products": (
        "SELECT CAST(day AS varchar), currency, rank, sku, revenue FROM {0}",
        "SELECT day, currency, rank() OVER (PARTITION BY day, currency ORDER BY revenue DESC), sku, revenue FROM "
        "(SELECT date_trunc('day', ts)::date::varchar AS day, currency, item->>'sku' AS sku, "
        "sum(round((item->>'quantity')::decimal(18,4) * (item->>'unitPrice')::decimal(18,4), 4)) AS revenue "
        "FROM (SELECT *, unnest((cur->'items')::json[]) AS item FROM paid) GROUP BY ALL)",
    ),
    "traffic_hopping": (
        "SELECT to_unixtime(window_start), type, channel, events, events_hour_before FROM {0}",
        "WITH w AS (SELECT hop, type, channel, count(*) AS n FROM (SELECT *, unnest([time_bucket(INTERVAL 15 MINUTE, "
        "ts), time_bucket(INTERVAL 15 MINUTE, ts) - INTERVAL 15 MINUTE, time_bucket(INTERVAL 15 MINUTE, ts) - INTERVAL "
        "30 MINUTE, time_bucket(INTERVAL 15 MINUTE, ts) - INTERVAL 45 MINUTE]) AS hop FROM event) GROUP BY ALL) "
        "SELECT epoch(a.hop), a.type, a.channel, a.n, coalesce(b.n, 0) FROM w a LEFT JOIN w b ON b.hop = a.hop - "
        "INTERVAL 1 HOUR AND b.type = a.type AND b.channel = a.channel",
    ),
    "traffic_rolling": (
        "SELECT to_unixtime(minute), type, channel, events, events_15m, events_previous_15m, events_day_before, "
        "events_week_before FROM {0}",
        "WITH m AS (SELECT date_trunc('minute', ts) AS minute, type, channel, count(*) AS n FROM event GROUP BY ALL) "
        "SELECT epoch(minute), type, channel, n, (SELECT sum(n) FROM m b WHERE b.type = a.type AND b.channel = "
        "a.channel AND b.minute BETWEEN a.minute - INTERVAL 14 MINUTE AND a.minute), coalesce((SELECT sum(n) FROM m b "
        "WHERE b.type = a.type AND b.channel = a.channel AND b.minute BETWEEN a.minute - INTERVAL 29 MINUTE AND "
        "a.minute - INTERVAL 15 MINUTE), 0), coalesce((SELECT sum(n) FROM m b WHERE b.type = a.type AND b.channel = "
        "a.channel AND b.minute = a.minute - INTERVAL 1 DAY), 0), coalesce((SELECT sum(n) FROM m b WHERE b.type = "
        "a.type AND b.channel = a.channel AND b.minute = a.minute - INTERVAL 7 DAY), 0) FROM m a",
    ),
    "guest": (
        "SELECT ref, orders, cardinality(spend), last_session_ref FROM {0}",
        "SELECT g.ref, (SELECT count(*) FROM paid p WHERE p.guest = g.ref), (SELECT count(DISTINCT currency) FROM paid "
        "p WHERE p.guest = g.ref), (SELECT s.ref FROM latest s WHERE s.topic = 'changelog.session' AND s.guest = g.ref "
        "ORDER BY (s.cur->>'startedAt')::timestamptz DESC, s.ref LIMIT 1) FROM latest g "
        "WHERE g.topic = 'changelog.guest'",
    ),
    "alerts": ("SELECT count(*) FROM {0}", "SELECT (SELECT count(*) FROM ({cancellations})) + (SELECT count(*) FROM "
               "({cart_abandoned})) + (SELECT count(*) FROM ({large_first_order}))"),
}  # fmt: skip
"""For each view: what Trino reads of it, and the same of the log in DuckDB."""

NEAR: dict[str, tuple[str, str, float]] = {
    "traffic": (
        "SELECT to_unixtime(minute), type, channel, guests FROM {0}",
        "SELECT epoch(date_trunc('minute', ts)), type, channel, count(DISTINCT guest) FROM event GROUP BY ALL",
        0.03,
    ),
    "revenue": (
        "SELECT to_unixtime(hour), country, currency, p50_order_value, p95_order_value FROM {0}",
        "SELECT epoch(date_trunc('hour', ts)), country, currency, quantile_disc(total, 0.5), quantile_disc(total, 0.95)"
        " FROM paid GROUP BY ALL",
        0.0100001,
    ),
}
"""Approximate columns: Trino, DuckDB, and the relative error that is allowed."""


def records_below(log: Iterable[LogRecord], cut: dict[tuple[str, int], int]) -> duckdb.DuckDBPyConnection:
    """A database with the good records below a cut."""
    rows = [record for record in log if record.offset < cut[record.topic, record.partition]]
    good = [
        record
        for record in rows
        if record.value and check(entity_of(record.topic), record.key, record.value).reason is None
    ]
    table = pa.table({
        "topic": [r.topic for r in good], "part": [r.partition for r in good], "off": [r.offset for r in good],
        "time": [r.time for r in good], "key": [r.key for r in good], "text": [(r.value or b"").decode() for r in good],
    })  # fmt: skip
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.register("records", table)
    database.execute("CREATE TABLE log AS SELECT * EXCLUDE text, text::json AS value FROM records")
    database.execute(PREPARED)
    return database


def plain(rows: list[Any]) -> list[str]:
    """Rows as text, so that kinds of numbers do not matter."""
    return sorted("|".join("-" if v is None else f"{v:.4f}" if _number(v) else str(v) for v in row) for row in rows)


def _number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, str)


def differences(database: duckdb.DuckDBPyConnection, read: Callable[[str, str], list[Any]]) -> dict[str, int]:
    """For each view the number of rows that only one side has. ``read``: view, query with {0} → rows of Trino."""
    patterns = {name: SAME[name][1] for name in ("cancellations", "cart_abandoned", "large_first_order")}
    found = {}
    for name, (asked, independent) in SAME.items():
        ours = Counter(plain(read(name, asked)))
        theirs = Counter(plain(database.execute(independent.format(**patterns)).fetchall()))
        found[name] = ((ours - theirs) + (theirs - ours)).total()
    return found


def errors(database: duckdb.DuckDBPyConnection, read: Callable[[str, str], list[Any]]) -> dict[str, float]:
    """For each view with approximate columns the greatest relative error; infinite if a row is missing."""
    found = {}
    for name, (asked, independent, _) in NEAR.items():
        ours = {tuple(row[:3]): row[3:] for row in read(name, asked)}
        truth = {row[:3]: row[3:] for row in database.execute(independent).fetchall()}
        found[name] = max(
            (
                abs(float(mine) - float(exact)) / max(abs(float(exact)), 0.01)
                for key, values in truth.items()
                for mine, exact in zip(ours[key], values, strict=True)
            ),
            default=0.0,
        ) if ours.keys() == truth.keys() else math.inf  # fmt: skip
    return found
