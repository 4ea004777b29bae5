"""Duplicates within the horizon, told by the log itself. Runs in Spark's Python workers.

The stores of identities (``changelog.identities``) are a cache of the log, so nothing has to agree with Spark's
checkpoint, and an epoch's cost follows its own records: Spark's own duplicate detection shuffles them whole and looks
through all its state once an epoch.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from changelog.classify import CHANGE, DUPLICATE, classify_batch
from changelog.erased import NOBODY, Erased
from changelog.identities import identities
from changelog.refill import catch_up, rows_of
from runtime.settings import Kafka


def judge(
    kafka: Kafka, directory: Path, horizon_seconds: int, erased: Erased = NOBODY
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs: classify records (``RECORD_DDL`` → ``CLASSIFIED_DDL``) and tell duplicates.

    The records of a topic-partition come in the order of their offsets. A store of a new generation reads what lies
    before it as well, so it knows every copy within the horizon from its first record on. Raises TransientError if a
    store is behind and Kafka does not answer.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun: set[tuple[str, int]] = set()
        for batch in batches:
            classified = classify_batch(batch, erased)
            columns = {name: classified.column(name).to_pylist() for name in ("topic", "kafka_partition", "kind")}
            kinds: list[str] = columns["kind"]
            places: dict[tuple[str, int], list[int]] = {}
            for number, place in enumerate(zip(columns["topic"], columns["kafka_partition"], strict=True)):
                places.setdefault(place, []).append(number)
            rows = rows_of(classified)
            for (topic, partition), numbers in places.items():
                store = identities(directory / f"{topic}-{partition}", horizon_seconds)
                if (topic, partition) not in begun:
                    first, appended = rows[numbers[0]][0], rows[numbers[0]][1]
                    catch_up(kafka, store, topic, partition, first, appended, horizon_seconds, erased)
                    store.forget(appended)
                    begun.add((topic, partition))
                changes = [number for number in numbers if kinds[number] == CHANGE]
                answers = store.mark([rows[number] for number in changes], rows[numbers[-1]][0] + 1)
                for number, duplicate in zip(changes, answers, strict=True):
                    if duplicate:
                        kinds[number] = DUPLICATE
            position = classified.schema.get_field_index("kind")
            yield classified.set_column(position, "kind", pa.array(kinds, pa.string()))

    return run
