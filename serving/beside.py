"""Runs beside what is served: their results in SQL, under the name of their location."""

from runtime import ops, trino
from runtime.errors import TerminalError
from runtime.settings import Settings
from serving import sql
from serving.sql import Pin
from views.registry import view_named


def show(settings: Settings, run_id: str) -> dict[str, int]:
    """Make ``lake.<location>.<view>``, what people read of a run that has a location of its own; rows of each view.

    Beside it stands the table ``<view>_states``. A second call replaces the views by the same. Raises TerminalError if
    there is no such run.
    """
    with ops.connect(settings) as connection:
        run = connection.execute(
            "SELECT * FROM runs WHERE run_id = %s AND state = 'built' AND location <> 'batch'", (run_id,)
        ).fetchone()
    if run is None:
        raise TerminalError(f"there is no finished run {run_id} with a location of its own")
    lake = trino.connect(settings)
    rows = {}
    for name, built in sorted(run["views"].items()):
        view, table = view_named(name), f'"{run["location"]}".{name}_states'
        pin = Pin(built["snapshot"], run["generation"], run["epoch"], table=table)
        text = view.read_sql(view.states_sql([sql.batch_side(view, pin)]))
        target = f'lake."{run["location"]}".{name}'
        trino.execute(
            lake, f"CREATE OR REPLACE VIEW {target} COMMENT 'run {run_id}, batch side alone' SECURITY DEFINER AS {text}"
        )
        rows[name] = int(trino.execute(lake, f"SELECT count(*) FROM {target}")[1][0][0])
    return rows
