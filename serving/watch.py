"""Watching: lag is measured, and who looks after the platform is told when a limit is passed and when it is well again.

An alert is told once when it begins and once when it ends: to the log, and to a webhook if one is configured (a POST of
``{"state", "alert", "message", "since"}``). One that could not be delivered is tried again with the next look.
"""

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from runtime import ops
from runtime.ops import Connection
from runtime.settings import Settings
from serving import drift
from serving.lag import Lag, measure, retention_used
from serving.published import current

log = logging.getLogger("watch")

TOLD_FOR = timedelta(minutes=10)
"""How long at least it is told that the speed layer has begun a generation by itself."""


@dataclass
class Watch:
    """What one look found: the worst lag of each component, and the alerts that are raised now."""

    lag: dict[str, dict[str, float | int | None]] = field(default_factory=dict)
    alerts: dict[str, str] = field(default_factory=dict)


def watch(settings: Settings) -> Watch:
    """Look once: measure, note alerts in ``ops.alerts``, tell of those that begin or end."""
    lags = measure(settings)
    with ops.connect(settings) as connection:
        found = Watch(
            worst(lags),
            {
                **silent(connection),
                **renewed(connection),
                **alerts(settings, lags),
                **capture(settings, connection),
                **drift.alerts(connection),
            },
        )
        _tell(settings, connection, found.alerts)
    return found


def silent(connection: Connection) -> dict[str, str]:
    """Services that failed, wait, or have said nothing for a minute: name of the alert → message with the remedy."""
    rows = connection.execute(
        "SELECT name, state, detail ->> 'error' AS error, updated_at FROM services "
        "WHERE state IN ('failed', 'waiting') OR updated_at < now() - interval '1 minute'"
    ).fetchall()
    return {
        f"{row['name']} does not work": f"{row['name']} is {row['state']} and spoke last at "
        f"{row['updated_at']:%H:%M:%S} ({row['error'] or 'no error'}): anabranch status, anabranch logs {row['name']}"
        for row in rows
    }


def renewed(connection: Connection) -> dict[str, str]:
    """What the speed layer has lost and begun anew by itself, until the views stand on it: alert → message. One that is
    switched to at once is told of all the same, for ``TOLD_FOR``."""
    row = connection.execute(
        "SELECT pipeline, generation, reason, created_at FROM generations g WHERE cause IS NOT NULL AND generation = "
        "(SELECT max(generation) FROM generations o WHERE o.pipeline = g.pipeline)"
    ).fetchone()
    if row is None:
        return {}
    behind = sorted(pair.view for pair in current(connection) if pair.generation < row["generation"])
    if not behind and row["created_at"] < datetime.now(UTC) - TOLD_FOR:
        return {}
    until = (
        f"{', '.join(behind)} stand still, exact up to where that one ended, until a batch run switches them (the DAG "
        "batch_views, or anabranch batch)"
        if behind
        else "all views stand on it"
    )
    return {
        f"generation {row['generation']} was begun": f"the speed layer began generation {row['generation']} by itself "
        f"at {row['created_at']:%H:%M:%S}, because {row['reason']}: {until}"
    }


def worst(lags: list[Lag]) -> dict[str, dict[str, float | int | None]]:
    """For each component the records behind, summed, and the age of the oldest of them in seconds."""
    summed: dict[str, dict[str, float | int | None]] = {}
    for lag in lags:
        one = summed.setdefault(lag.component, {"records": 0, "behind_seconds": 0.0})
        one["records"] = (one["records"] or 0) + lag.records
        one["behind_seconds"] = round(max(one["behind_seconds"] or 0.0, lag.behind_seconds or 0.0), 3)
    return summed


def alerts(settings: Settings, lags: list[Lag]) -> dict[str, str]:
    """What is beyond its limit: name of the alert → message with the remedy."""
    raised = {}
    limits = settings.watch.max_behind_seconds
    remedy = {
        "cdc": "anabranch logs cdc; changes of the shop are late in the log until it has caught up",
        "archiver": "anabranch logs archiver; what Kafka lets go of before it is archived is lost to the batch layer",
        "derive": "anabranch logs derive; what it has not passed is missing in latest.* and patch.* until it has",
        "speed": "anabranch logs speed; merged views are late until it has caught up, never wrong",
        "ingest": "look at the DAG batch_views, task ingest: holes and damaged objects are named in its log",
        "boundary": "look at the DAG batch_views; a hold after a rollback keeps the boundary too: anabranch release",
    }
    for component, limit in limits.items():
        late = [lag for lag in lags if lag.component == component and (lag.behind_seconds or 0) > limit]
        if late:
            most = max(late, key=lambda lag: lag.behind_seconds or 0)
            raised[f"{component} is late"] = (
                f"{component} is {most.behind_seconds:.0f} s behind at {most.topic}/{most.partition}, offset "
                f"{most.offset} of {most.end} (limit {limit:.0f} s): {remedy[component]}"
            )
    used = retention_used(settings, lags)
    if used > 0.5:
        raised["boundary nears Kafka's retention"] = (
            f"the boundary's age is {used:.0%} of Kafka's retention: run the batch layer now (anabranch batch), or "
            "lengthen retention.ms of the changelog topics, before only the archive has what the speed side needs"
        )
    return raised


def capture(settings: Settings, connection: Connection) -> dict[str, str]:
    """What the service ``cdc`` says of connector, slot and entities that needs somebody: alert → message."""
    row = connection.execute("SELECT detail FROM services WHERE name = 'cdc'").fetchone()
    if row is None:
        return {}
    said, raised = row["detail"], {}
    connector, slot = said.get("connector"), said.get("slot")
    if connector is not None and (connector["connector"], connector["task"]) != ("RUNNING", "RUNNING"):
        error = (connector["error"] or "").partition("\n")[0]
        raised["the connector does not run"] = (
            f"the connector of the shop is {connector['connector']}, its task {connector['task']} "
            f"({error or 'no error'}): anabranch logs connect; anabranch up starts it again and makes a lost slot anew"
        )
    if slot is not None and slot.get("lost"):
        raised["the replication slot is lost"] = (
            f"PostgreSQL kept {settings.cdc.max_slot_wal_mb} MB of WAL for a connector that did not read, and no more: "
            "changes of the shop are missing in the log; anabranch up reads it whole again and writes what differs"
        )
    elif slot is not None and slot.get("behind_bytes", 0) > settings.cdc.max_slot_wal_mb * 2**20 / 2:
        raised["the replication slot holds much WAL"] = (
            f"PostgreSQL keeps {slot['behind_bytes'] / 2**20:.0f} MB of WAL for the connector, at "
            f"{settings.cdc.max_slot_wal_mb} MB it gives the slot up (cdc.max_slot_wal_mb): anabranch status, "
            "anabranch logs connect"
        )
    if said.get("unknown"):
        raised["captured orders are not whole"] = (
            f"{said['unknown']} changes of orders had nothing in the log to be added to: anabranch cdc snapshot orders"
        )
    return raised


def _tell(settings: Settings, connection: Connection, raised: dict[str, str]) -> None:
    for name, message in raised.items():
        connection.execute(
            "INSERT INTO alerts (alert, message) VALUES (%s, %s) ON CONFLICT (alert) DO UPDATE SET message = "
            "excluded.message, ended_at = NULL, since = CASE WHEN alerts.ended_at IS NULL THEN alerts.since ELSE now() "
            "END, told = CASE WHEN alerts.ended_at IS NULL THEN alerts.told END",
            (name, message),
        )
    connection.execute(
        "UPDATE alerts SET ended_at = now() WHERE ended_at IS NULL AND NOT alert = ANY(%s)", (list(raised),)
    )
    for row in connection.execute("SELECT * FROM alerts").fetchall():
        state = "raised" if row["ended_at"] is None else "ended"
        if row["told"] == state or (state == "ended" and row["told"] is None):
            continue
        (log.warning if state == "raised" else log.info)("alert %s: %s", state, row["message"])
        if _post(settings, {**{k: row[k] for k in ("alert", "message")}, "state": state, "since": str(row["since"])}):
            connection.execute("UPDATE alerts SET told = %s WHERE alert = %s", (state, row["alert"]))


def _post(settings: Settings, body: dict[str, Any]) -> bool:
    """Whether the webhook took it; true where none is configured."""
    url = settings.watch.webhook_url.get_secret_value()
    if not url:
        return True
    try:
        httpx.post(url, json=body, timeout=10).raise_for_status()
    except httpx.HTTPError as error:
        log.warning("the webhook did not take the alert, it is tried again: %s", type(error).__name__)
        return False
    return True
