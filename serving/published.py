"""What was published and what can be served again, read from the operations database."""

from dataclasses import dataclass, replace
from typing import Any

from changelog.positions import Vector, from_json
from runtime.errors import TerminalError
from runtime.ops import Connection
from serving.sql import Pin
from views.algebra import View
from views.registry import views_of


@dataclass(frozen=True)
class Served:
    """One view in one publication."""

    view: str
    publication: int
    run_id: str | None
    generation: int
    epoch: int
    vector: Vector
    snapshot: int | None
    records: int
    restores: int | None

    @property
    def pin(self) -> Pin:
        return Pin(self.snapshot, self.generation, self.epoch)


def current(connection: Connection) -> list[Served]:
    """The newest finished publication of each view that is served."""
    return [pair_from_row(row) for row in connection.execute("SELECT * FROM served ORDER BY view").fetchall()]


def history(connection: Connection) -> list[dict[str, Any]]:
    """The pairs that can be served, newest first.

    Columns: publication, kind, view, run_id, generation, epoch, snapshot, published_at, served (whether it is now).
    """
    return connection.execute(
        "WITH now AS (SELECT view, coalesce(restores, publication) AS publication FROM served) "
        "SELECT v.publication, p.kind, v.view, v.run_id, v.generation, v.epoch, v.snapshot, p.published_at, "
        "now.publication IS NOT NULL AS served FROM publication_views v JOIN publications p USING (publication) "
        "LEFT JOIN now ON now.view = v.view AND now.publication = v.publication "
        "WHERE p.state = 'finished' AND v.restores IS NULL AND v.retired_at IS NULL "
        "AND (now.publication IS NOT NULL OR "
        "v.generation = (SELECT max(g.generation) FROM generations g WHERE g.pipeline = p.pipeline)) "
        "ORDER BY v.publication DESC, v.view"
    ).fetchall()


def pair_from_row(row: dict[str, Any]) -> Served:
    """A row of the table ``publication_views`` as a pair."""
    return Served(
        row["view"],
        row["publication"],
        row["run_id"],
        row["generation"],
        row["epoch"],
        from_json(row["vector"]),
        row["snapshot"],
        row["records"],
        row["restores"],
    )


def _history(connection: Connection, view: View) -> tuple[int, list[dict[str, Any]]]:
    """(the publication whose pair is served, the pairs that were published, newest first) of a view."""
    rows = connection.execute(
        "SELECT v.* FROM publication_views v JOIN publications p USING (publication) "
        "WHERE v.view = %s AND p.state = 'finished' AND v.withdrawn_at IS NULL ORDER BY v.publication DESC",
        (view.name,),
    ).fetchall()
    if not rows:
        raise TerminalError(f"{view.name} has never been published")
    return rows[0]["restores"] or rows[0]["publication"], rows


def goes_back(connection: Connection, view: View) -> bool:
    """Whether the view was served otherwise before."""
    pairs = connection.execute(
        "SELECT count(*) AS n FROM publication_views v JOIN publications p USING (publication) "
        "WHERE v.view = %s AND p.state = 'finished' AND v.restores IS NULL AND v.withdrawn_at IS NULL",
        (view.name,),
    ).fetchone()
    return pairs is not None and pairs["n"] > 1


def pair_before(connection: Connection, view: View) -> Served:
    """The pair that was served before the one that is served now; a rollback counts as what it restored."""
    now, rows = _history(connection, view)
    for row in rows:
        if row["publication"] < now and row["restores"] is None:
            return _restored(row)
    raise TerminalError(f"{view.name}: there is no publication before {now}")


def pair_of(connection: Connection, view: View, publication: int) -> Served:
    """The pair of ``view`` that ``publication`` served; a rollback counts as what it restored."""
    now, rows = _history(connection, view)
    by_number = {row["publication"]: row for row in rows}
    row = by_number.get(publication)
    if row is not None and row["restores"] is not None:
        row = by_number[row["restores"]]
    if row is None:
        kept = [str(row["publication"]) for row in rows if row["restores"] is None and row["retired_at"] is None]
        raise TerminalError(
            f"publication {publication} did not serve {view.name}; to go back to are: {', '.join(kept)}"
        )
    if row["publication"] == now:
        raise TerminalError(f"{view.name} serves what publication {publication} served already")
    return _restored(row)


def _restored(row: dict[str, Any]) -> Served:
    """A pair, to be served again. Raises TerminalError if maintenance has retired it."""
    found = pair_from_row(row)
    if row["retired_at"] is not None:
        raise TerminalError(
            f"{found.view}: publication {found.publication} was retired on {row['retired_at']:%Y-%m-%d %H:%M}; what is "
            "retired comes back only by a new run: anabranch batch --full"
        )
    return replace(found, restores=found.publication)


def views_in(connection: Connection, publication: int | None, pipeline: str) -> list[View]:
    """The views of a publication that are still defined and were not withdrawn; those of the pipeline if none is
    named."""
    if publication is None:
        return list(views_of(pipeline))
    rows = connection.execute(
        "SELECT view, withdrawn_at FROM publication_views WHERE publication = %s", (publication,)
    ).fetchall()
    names = {row["view"] for row in rows if row["withdrawn_at"] is None}
    if not rows:
        raise TerminalError(f"there is no publication {publication}: anabranch publications")
    return [view for view in views_of(pipeline) if view.name in names]
