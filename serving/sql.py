"""The SQL of the serving layer, made from the definitions of the views. Pure text.

merged(view) = batch(records below the boundary) + speed(records from the boundary on)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from changelog.erased import WEAK_BELOW
from serving.json_sql import json_of
from views.algebra import View
from views.derived import Derived


@dataclass(frozen=True)
class Pin:
    """What one publication pins for one view: batch snapshot (None: no batch side yet), generation and epoch.

    ``until`` limits the speed side to epochs before it (for comparisons at a cut). ``table`` is where the batch side
    is, if not in ``batch.<view>``.
    """

    snapshot: int | None
    generation: int
    epoch: int
    until: int | None = None
    table: str | None = None


def batch_side(view: View, pin: Pin) -> str:
    """SELECT of the partial states folded by the batch layer, at the pinned snapshot."""
    columns = ", ".join(field.name for field in view.fields)
    return f"SELECT {columns} FROM lake.{pin.table or f'batch.{view.name}'} FOR VERSION AS OF {pin.snapshot}"


def speed_side(view: View, pin: Pin) -> str:
    """SELECT of the partial states folded by the speed layer from the pinned epoch on."""
    until = f" AND s.epoch < {pin.until}" if pin.until is not None else ""
    return (
        f"{struct_of(view, f'lake.speed.{view.pipeline}')} AND s.generation = {pin.generation} "
        f"AND s.epoch >= {pin.epoch}{until}"
    )


def struct_of(view: View, table: str) -> str:
    """SELECT of the partial states of one view from a table that has a struct column for each."""
    columns = ", ".join(f"s.{view.name}.{field.name} AS {field.name}" for field in view.fields)
    return f"SELECT {columns} FROM {table} s WHERE s.view = '{view.name}'"


ERASING = "ops.public.erasing"
"""The refs of guests who are being erased: so what is served names nobody, and the list may grow."""


def states(view: View, pin: Pin, hide: bool = False) -> str:
    """SELECT of the merged partial states: one row for each key, groups that cancelled out included.

    ``hide``: without the rows of guests who are being erased.
    """
    parts = [speed_side(view, pin)]
    if pin.snapshot is not None:
        parts.insert(0, batch_side(view, pin))
    text = view.states_sql(parts)
    if not hide or GUEST not in (key.field.name for key in view.contribution.keys):
        return text
    return f"SELECT * FROM (\n{text}\n)\nWHERE {GUEST} NOT IN (SELECT ref FROM {ERASING})"


GUEST = "guest_ref"
"""The key column of views whose rows are of one guest."""


def merged(view: View, pin: Pin, hide: bool = False) -> str:
    """SELECT of what people read; ``hide`` as above."""
    return view.read_sql(states(view, pin, hide))


def derived(view: Derived, pins: Mapping[str, tuple[View, Pin]], hide: bool = False) -> str:
    """SELECT of a view over views, each at its pin; ``hide`` as above."""
    return view.text({name: (base, states(base, pin, hide)) for name, (base, pin) in pins.items()})


def _hidden(text: str, guest: str) -> str:
    """Rows of records without those of guests who are being erased, and without those that name one: a ref that is weak
    as a text of JSON."""
    named = (
        f"CASE WHEN length(one) < {WEAK_BELOW} OR regexp_like(one, '^[0-9]+$') THEN '\"' || one || '\"' ELSE one END"
    )
    return (
        f"SELECT records.* FROM (\n{text}\n) records\nCROSS JOIN (SELECT coalesce(array_agg(ref), ARRAY[]) AS refs "
        f"FROM {ERASING}) erasing\nWHERE none_match(erasing.refs, one -> coalesce({guest} = one, false) OR "
        f"coalesce(strpos(from_utf8(records.value), {named}) > 0, false))"
    )


def comparable(view: View) -> dict[str, str]:
    """Columns that people read, each with an expression that Trino can compare: nested values as JSON, because it does
    not compare rows in which a field is null."""
    types = {field.name: field.type for field in view.fields}
    return {
        read.name: f"json_format(CAST({read.name} AS JSON))"
        if types.get(read.name, "").startswith(("array", "struct"))
        else read.name
        for read in view.reads
    }


def columns(views: Sequence[View | Derived]) -> str:
    """``ops.columns``: what each column that people read means: view, column_name, comment.

    A comment on a view's own column is a statement for each, and a publication, which replaces the view, drops it.
    """
    rows = ", ".join(
        f"('{view.name}', '{column.name}', '{column.comment.replace(chr(39), chr(39) * 2)}')"
        for view in views
        for column in (view.columns if isinstance(view, Derived) else view.reads)
    )
    return f"SELECT * FROM (VALUES {rows}) AS t(view, column_name, comment)"


EPOCHS = """
SELECT '{pipeline}' AS pipeline, s.generation, s.epoch, s.journal.topic AS topic,
  s.journal.kafka_partition AS kafka_partition, s.journal.start_offset AS start_offset,
  s.journal.end_offset AS end_offset, s.journal.records AS records, s.journal.changes AS changes,
  s.journal.records - s.journal.changes - s.journal.bad - s.journal.tombstones
    - coalesce(s.journal.erased, 0) AS duplicates,
  s.journal.bad AS bad, s.journal.tombstones AS tombstones, coalesce(s.journal.erased, 0) AS erased,
  s.journal.last_append_time AS last_append_time
FROM lake.speed.{pipeline} s WHERE s.view = 'journal'
"""
"""``ops.epochs``: the journal of the speed layer, a row for each epoch and topic-partition."""


def bad_records(pipelines: Sequence[str], archived: Sequence[str], hide: bool = False) -> str:
    """``ops.bad_records``: every bad record once and whole, with coordinates and reason.

    Columns: topic, kafka_partition, kafka_offset, reason, append_time, key, value, archived (whether the columnar
    archive has it), replayed_to (topic/partition/offset of what it became once it was mended) and replayed_at. The
    newest are known to the speed layer alone, old ones to the archive alone.
    ``archived``: entities whose archive table is there. ``hide``: without those of guests who are being erased.
    """
    parts = [
        "SELECT s.bad.topic AS topic, s.bad.kafka_partition AS kafka_partition, s.bad.kafka_offset AS kafka_offset, "
        "s.bad.reason AS reason, s.bad.append_time AS append_time, s.bad.key AS key, s.bad.value AS value, "
        f"false AS archived FROM lake.speed.{pipeline} s WHERE s.view = 'bad'"
        for pipeline in pipelines
    ] + [
        f"SELECT 'changelog.{entity}', kafka_partition, kafka_offset, reason, append_time, key, value, true "
        f"FROM lake.archive.\"{entity}\" WHERE kind = 'bad'"
        for entity in archived
    ]
    union = "\n  UNION ALL\n  ".join(parts)
    once = (
        "SELECT topic, kafka_partition, kafka_offset, arbitrary(reason) AS reason, "
        "arbitrary(append_time) AS append_time, arbitrary(key) AS key, arbitrary(value) AS value, "
        f"bool_or(archived) AS archived\nFROM (\n  {union}\n)\nGROUP BY topic, kafka_partition, kafka_offset"
    )
    if hide:
        once = _hidden(once, "from_utf8(records.key)")
    return (
        f"SELECT bad.*, {REPLAYED_TO} AS replayed_to, replays.replayed_at\nFROM (\n{once}\n) bad\n"
        f"LEFT JOIN {REPLAYS} replays ON replays.topic = bad.topic AND replays.kafka_partition = bad.kafka_partition "
        "AND replays.kafka_offset = bad.kafka_offset"
    )


REPLAYS = "ops.public.dead_letter_replays"
REPLAYED_TO = (
    "replays.to_topic || '/' || CAST(replays.to_partition AS varchar) || '/' || CAST(replays.to_offset AS varchar)"
)


def audit(archived: Mapping[str, str], hide: bool = False) -> str:
    """``ops.audit``: every record of the log that is archived, with who wrote it as what.

    Columns: topic, kafka_partition, kafka_offset, append_time, kind (change, duplicate, bad, tombstone), service_name,
    identifier, entity, guest_ref (the key), ref, change (create, update, delete), reason, current and original (JSON of
    what the archive knows of them), value (the record whole, where it is not a change), replayed_to (of a bad record,
    where it went once it was mended), dead_letter (what it was before). What is not a change says of itself what its
    bytes say, where they can be read. ``archived``: entities whose archive is there, with the type of ``current``.
    ``hide``: without those of guests who are being erased.
    """
    parts = [_audited(entity, type_) for entity, type_ in archived.items()]
    union = "\n  UNION ALL\n".join(parts)
    if hide:
        union = _hidden(union, "records.guest_ref")
    return (
        f"SELECT log.*, {REPLAYED_TO} AS replayed_to, letters.dead_letter\nFROM (\n{union}\n) log\n"
        f"LEFT JOIN {REPLAYS} replays ON replays.topic = log.topic AND replays.kafka_partition = log.kafka_partition "
        "AND replays.kafka_offset = log.kafka_offset\n"
        "LEFT JOIN (SELECT to_topic, to_partition, to_offset, array_join(array_agg(topic || '/' || CAST("
        "kafka_partition AS varchar) || '/' || CAST(kafka_offset AS varchar)), ', ') AS dead_letter "
        f"FROM {REPLAYS} WHERE replayed_at IS NOT NULL GROUP BY 1, 2, 3) letters ON letters.to_topic = log.topic "
        "AND letters.to_partition = log.kafka_partition AND letters.to_offset = log.kafka_offset"
    )


def _audited(entity: str, type_: str) -> str:
    guest = "ref" if entity == "guest" else "guestRef"

    def side(name: str) -> str:
        whole = f"json_format(nullif(json_extract(said, '$.{name}'), JSON 'null'))"
        typed = json_of('"' + name + '"', type_)
        return f"coalesce(json_format({typed}), {whole})"

    def says(path: str) -> str:
        return f"json_extract_scalar(said, '$.{path}')"

    return (
        f"  SELECT 'changelog.{entity}' AS topic, kafka_partition, kafka_offset, append_time, kind, "
        f"coalesce(service_name, {says('provenance.serviceName')}) AS service_name, "
        f"coalesce(identifier, {says('provenance.identifier')}) AS identifier, '{entity}' AS entity, "
        f"coalesce(from_utf8(key), {says(f'current.{guest}')}, {says(f'original.{guest}')}) AS guest_ref, "
        f'coalesce("current".ref, original.ref, {says("current.ref")}, {says("original.ref")}) AS ref, '
        "CASE WHEN now IS NULL AND before IS NULL THEN NULL WHEN before IS NULL THEN 'create' "
        "WHEN now IS NULL THEN 'delete' ELSE 'update' END AS change, reason, now AS \"current\", before AS original, "
        f"value\n  FROM (SELECT *, {side('current')} AS now, {side('original')} AS before FROM (\n"
        "    SELECT *, CASE WHEN kind <> 'change' THEN try(json_parse(from_utf8(value))) END AS said "
        f"FROM lake.archive.\"{entity}\" WHERE kind <> 'empty'))"
    )


_BOUNDARY = """
WITH pinned AS (
  SELECT view, publication, kind, run_id, generation, epoch, snapshot, records, topic, json_format(vector) AS vector,
    published_at
  FROM ops.public.served
), journal AS (
  SELECT s.generation, s.epoch, s.journal.topic AS topic, sum(s.journal.records) AS records
  FROM lake.speed.main s WHERE s.view = 'journal' GROUP BY 1, 2, 3
), deferred AS (
  SELECT p.view, sum(s.deferred.records) AS records FROM pinned p JOIN lake.speed.main s
  ON s.generation = p.generation AND s.epoch >= p.epoch AND s.deferred.topic = p.topic
  WHERE s.view = 'deferred' AND p.view IN ({defer}) GROUP BY p.view
), archived AS (
  SELECT topic, json_format(cast(map_agg(cast(kafka_partition AS varchar), kafka_offset) AS json)) AS archived
  FROM ops.public.archived GROUP BY topic
)
SELECT p.view, p.publication, p.kind, p.generation, p.epoch, p.vector, a.archived, p.snapshot,
  p.run_id, p.records AS batch_records, coalesce(sum(j.records), 0) AS speed_records,
  coalesce(d.records, 0) AS deferred_records, p.published_at,
  date_diff('second', p.published_at, current_timestamp) AS age_seconds
FROM pinned p
LEFT JOIN journal j ON j.generation = p.generation AND j.epoch >= p.epoch AND j.topic = p.topic
LEFT JOIN archived a ON a.topic = p.topic
LEFT JOIN deferred d ON d.view = p.view
GROUP BY p.view, p.publication, p.kind, p.generation, p.epoch, p.vector, a.archived, p.snapshot, p.run_id, p.records,
  p.published_at, d.records
"""


def boundary(views: Sequence[View]) -> str:
    """``serving.boundary``: where each view's batch side ends and its speed side begins, and how much each covers.

    ``batch_records`` counts offsets of the view's topic below the boundary; ``vector`` is the boundary for all topics
    of the pipeline, ``archived`` the archived position of the view's own topic. ``deferred_records``: changes from the
    boundary on that the speed side left to the next batch run.
    """
    names = ", ".join(f"'{view.name}'" for view in views if view.defers)
    return _BOUNDARY.format(defer=names or "NULL")
