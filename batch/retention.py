"""What can still be published, and what may go. Decided in the operations database, under the lock of publication.

First it is decided and written down that something can no longer be published; only then is it deleted. Who publishes
asks under the same lock, so nothing that is served, or could be served by a rollback, is ever deleted.
"""

import logging
import sys
from dataclasses import dataclass, field

from runtime.ops import Connection

log = logging.getLogger("retention")

GONE = sys.maxsize
"""Floor of a generation of which nothing is kept."""


@dataclass
class Kept:
    """What must stay. ``floors``: (pipeline, generation) → first epoch whose rows stay; ``snapshots``: of each view,
    those that are published, can be, or belong to a run that may still be published."""

    floors: dict[tuple[str, int], int] = field(default_factory=dict)
    snapshots: dict[str, set[int]] = field(default_factory=dict)
    building: set[str] = field(default_factory=set)
    retired: int = 0


def retire(connection: Connection, keep: int, run_hours: float) -> Kept:
    """Retire the pairs beyond the newest ``keep`` of each view, and runs that nobody published within ``run_hours``.

    What is served, what a rollback serves again, and what an interrupted publication is about to serve are never
    retired. Needs the lock of publication. A second call retires nothing more.
    """
    with connection.transaction():
        pairs = connection.execute(_RETIRE_PAIRS, {"keep": keep}).rowcount
        runs = connection.execute(_RETIRE_RUNS, {"hours": run_hours}).rowcount
        kept = Kept(retired=pairs + runs)
        for row in connection.execute(_FLOORS).fetchall():
            kept.floors[row["pipeline"], row["generation"]] = row["epoch"] if row["epoch"] is not None else GONE
        for (pipeline, generation), epoch in kept.floors.items():
            connection.execute(
                "INSERT INTO speed_floors (pipeline, generation, epoch) VALUES (%s, %s, %s) "
                "ON CONFLICT (pipeline, generation) DO UPDATE SET epoch = greatest(speed_floors.epoch, excluded.epoch)",
                (pipeline, generation, epoch),
            )
        for row in connection.execute(_SNAPSHOTS).fetchall():
            kept.snapshots.setdefault(row["view"], set()).add(row["snapshot"])
        kept.building = {
            row["run_id"] for row in connection.execute("SELECT run_id FROM runs WHERE state = 'building'").fetchall()
        }
    if kept.retired:
        log.info("retired %d pairs and %d runs", pairs, runs)
    return kept


def retire_before(connection: Connection, erasure: int) -> int:
    """Retire every pair and every run that has not taken in the erasures up to this one: what counts an erased guest is
    never served again. Needs the lock of publication; what is served has to have taken them in. Returns how many."""
    old = "(pipeline, generation) IN (SELECT pipeline, generation FROM generations WHERE erasures < %(erasure)s)"
    with connection.transaction():
        pairs = connection.execute(
            "UPDATE publication_views SET retired_at = now() WHERE retired_at IS NULL AND restores IS NULL AND "
            "generation IN (SELECT generation FROM "
            "generations WHERE erasures < %(erasure)s AND pipeline = (SELECT pipeline FROM publications p WHERE "
            "p.publication = publication_views.publication))",
            {"erasure": erasure},
        ).rowcount
        runs = connection.execute(
            f"UPDATE runs SET state = 'retired' WHERE state IN ('built', 'building') AND {old}", {"erasure": erasure}
        ).rowcount
    return pairs + runs


_PINNED = """
    SELECT v.view, coalesce(v.restores, v.publication) AS publication FROM publication_views v
    JOIN publications p USING (publication) WHERE p.state = 'started'
    UNION
    SELECT view, coalesce(restores, publication) FROM served
"""
"""Pairs that are served, or about to be; a rollback counts as what it restored."""

_RETIRE_PAIRS = f"""
UPDATE publication_views SET retired_at = now() WHERE retired_at IS NULL AND restores IS NULL
AND (view, publication) IN (
    SELECT view, publication FROM (
        SELECT v.view, v.publication, row_number() OVER (PARTITION BY v.view ORDER BY v.publication DESC) AS age
        FROM publication_views v JOIN publications p USING (publication)
        WHERE p.state = 'finished' AND v.restores IS NULL
    ) AS ranked WHERE age > %(keep)s
) AND (view, publication) NOT IN ({_PINNED})
"""

_RETIRE_RUNS = """
UPDATE runs SET state = 'retired' WHERE coalesce(finished_at, started_at) < now() - make_interval(secs => 3600 *
    CASE state WHEN 'built' THEN %(hours)s ELSE greatest(%(hours)s, 24) END)
AND state IN ('built', 'building')
AND NOT EXISTS (
    SELECT 1 FROM publication_views v WHERE v.run_id = runs.run_id AND v.retired_at IS NULL AND v.restores IS NULL
)
"""

_FLOORS = """
SELECT g.pipeline, g.generation, min(v.epoch) AS epoch FROM generations g
LEFT JOIN (
    SELECT p.pipeline, v.generation, v.epoch FROM publication_views v JOIN publications p USING (publication)
    WHERE v.retired_at IS NULL AND v.restores IS NULL
) AS v ON v.pipeline = g.pipeline AND v.generation = g.generation
GROUP BY g.pipeline, g.generation
HAVING min(v.epoch) IS NOT NULL OR g.generation < (
    SELECT min(o.generation) FROM publication_views o JOIN publications q USING (publication)
    WHERE q.pipeline = g.pipeline AND o.retired_at IS NULL AND o.restores IS NULL
)
"""
"""The oldest epoch of each generation that can be published; null for a generation older than all of them. One that is
newer than all that is published is not listed: all of it stays."""

_SNAPSHOTS = """
SELECT v.view, v.snapshot FROM publication_views v
WHERE v.retired_at IS NULL AND v.restores IS NULL AND v.snapshot IS NOT NULL
UNION
SELECT built.key, (built.value ->> 'snapshot')::bigint FROM runs, jsonb_each(runs.views) AS built
WHERE runs.state IN ('built', 'building')
"""
