"""``python -m tests.faults.table [LINES] [PAGE]``: the table of faults, made of what the tests noted of their runs."""

import sys
from pathlib import Path
from typing import Any

from tests.faults.catalogue import catalogue
from tests.faults.report import FILE, newest_lines

PAGE = Path("docs") / "faults.md"

HEAD = """# The table of faults

Made by `make faults` on the real processes: a platform of its own, faults one after another, each with its figures.
A row is the newest run of its case; one that failed is in the table as failed, and what no run has is named below.

After each case of the catalogue a checker that shares no code with the platform's folds
([0028](decisions/0028-an-independent-witness.md)) compares, record by record: a journal of what Kafka acknowledged,
kept by the writers; Kafka; the raw objects; the columnar archive; the speed layer's journal; the dead letters; and
thirteen merged views. *Lost* and *doubled* count records, rows and epochs in any of these places, *altered* also what
nobody wrote. While a fault lasts a reader asks the merged views: no answer may be false, and none may be refused
unless the fault takes away what answers. The other cases compare every merged view, or the topics that they are about,
with a fold in plain Python.

*Kills*: processes ended by SIGKILL. *Records*: in the log by then. *Recovery*: seconds from the last act of the fault
until every view covered everything acknowledged. *Seed*: a case's moments and keys are made of it.
"""

CONTROLS = "controls."
"""What the names of the tests of the checker begin with."""

COLUMNS = "| fault | seed | kills | records | lost | doubled | altered | queries (refused) | recovery | what was done |"


def text(value: Any) -> str:
    """A figure as people read it; nothing where there is none."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def row(line: dict[str, Any]) -> str:
    """A line of the table. A case that did not pass says so first."""
    queries = f"{line['queries']:,} ({line['refused_queries']})" if line["queries"] else ""
    name = f"`{line['name']}`" if line["outcome"] == "passed" else f"**{line['outcome']}** `{line['name']}`"
    notes = [note for note in (line["note"], *(f"failed before: {note}" for note in line["failed_before"])) if note]
    note = f" *{'; '.join(notes)}*" if notes else ""
    recovery = "" if line["recovery_seconds"] is None else f"{line['recovery_seconds']:.1f} s"
    figures = (text(line[key]) for key in ("kills", "records", "lost", "doubled", "altered"))
    cells = [
        name, str(line["seed"] or ""), *figures, queries, recovery,
        f"{line['what']}{note}".replace("|", "\\|"),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(ran: list[dict[str, Any]]) -> str:
    """The whole page, of a line a case."""
    controls = [line for line in ran if line["name"].startswith(CONTROLS)]
    all_lines = [line for line in ran if line not in controls]
    passed = [line for line in all_lines if line["outcome"] == "passed"]
    missing = [name for name in catalogue() if name not in {line["name"] for line in all_lines}]
    kills = sum(line["kills"] for line in all_lines)
    minutes = sum(line["seconds"] for line in all_lines) / 60
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(line.get("commit") for line in all_lines) if commit)
    days = sorted({line["at"][:10] for line in all_lines}) or ["never"]
    times = sorted(line["recovery_seconds"] for line in passed if line["recovery_seconds"] is not None)
    sums = {name: sum(line[name] or 0 for line in all_lines) for name in ("lost", "doubled", "altered")}
    summary = (
        f"{len(all_lines)} cases, {len(passed)} passed, {kills:,} kills, {minutes:.0f} minutes "
        f"({' to '.join(dict.fromkeys((days[0], days[-1])))}{f'; commit {commits}' if commits else ''}). "
        f"Lost: {sums['lost']}. Doubled: {sums['doubled']}. Altered: {sums['altered']}."
        + (f" Recovery: median {times[len(times) // 2]:.1f} s, at most {times[-1]:.1f} s." if times else "")
    )
    found = sum(line["outcome"] == "passed" for line in controls)
    checked = f"Controls, in which the checker has to find one forged record: {found} of {len(controls)} passed."
    parts = [
        HEAD,
        summary,
        "",
        *([checked, ""] if controls else []),
        COLUMNS,
        "|---|" + "--:|" * 8 + "---|",
        *map(row, all_lines),
    ]
    if missing:
        parts += ["", f"Not in this run: {', '.join(f'`{name}`' for name in missing)}."]
    return "\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page. 1 if there is nothing to write it from."""
    lines = Path(arguments[0]) if arguments else FILE
    target = Path(arguments[1]) if len(arguments) > 1 else PAGE
    if not lines.exists():
        print(f"{lines} is not there: run the tests of faults first (make faults)", file=sys.stderr)
        return 1
    target.write_text(page(newest_lines(lines)))
    print(f"{target} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
