"""What whoever looks after the platform wants to see at once, from the operations database alone."""

from typing import Any

from runtime.ops import Connection
from serving.published import current

LATEST = 5


def overview(connection: Connection) -> dict[str, Any]:
    """``{"served": [...], "archived": {...}, "lag": {...}, "publications": [...], "held": …, "alerts": [...]}``.

    ``served``: for each view publication, generation, epoch and the vector where its speed side begins; ``archived``:
    topic → partition → archived position; ``lag``: the last measurement, for each component records and seconds behind;
    ``publications``: the newest; ``held``: the publication of the rollback that holds, or None.
    """
    held = connection.execute("SELECT publication FROM holds ORDER BY publication DESC LIMIT 1").fetchone()
    archived: dict[str, dict[str, int]] = {}
    for row in connection.execute("SELECT * FROM archived ORDER BY topic, kafka_partition").fetchall():
        archived.setdefault(row["topic"], {})[str(row["kafka_partition"])] = row["kafka_offset"]
    return {
        "served": [
            {
                "view": one.view,
                "publication": one.publication,
                "run_id": one.run_id,
                "generation": one.generation,
                "epoch": one.epoch,
                "vector": one.vector,
            }
            for one in current(connection)
        ],
        "archived": archived,
        "lag": {
            row["component"]: {
                "records": int(row["records"]),
                "behind_seconds": row["behind_seconds"],
                "measured_at": str(row["measured_at"]),
            }
            for row in connection.execute(
                "SELECT component, measured_at, sum(lag) AS records, max(behind_seconds) AS behind_seconds FROM lag "
                "WHERE measured_at = (SELECT max(measured_at) FROM lag) GROUP BY component, measured_at"
            ).fetchall()
        },
        "publications": [
            {**row, "published_at": str(row["published_at"])}
            for row in connection.execute(
                "SELECT p.publication, p.kind, p.run_id, p.state, p.published_at, array_agg(v.view ORDER BY v.view) AS "
                "views FROM publications p JOIN publication_views v USING (publication) GROUP BY p.publication "
                "ORDER BY p.publication DESC LIMIT %s",
                (LATEST,),
            ).fetchall()
        ],
        "held": held["publication"] if held else None,
        "alerts": [
            row["message"]
            for row in connection.execute("SELECT message FROM alerts WHERE ended_at IS NULL ORDER BY since").fetchall()
        ],
    }
