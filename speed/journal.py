"""What an epoch records about itself: a journal row for each topic-partition, the bad records whole, and how many
changes it left to the batch layer.

They are contributions like those of the views, so they are made in the same aggregation and land in the same commit.
"""

from collections.abc import Sequence

from views.algebra import Contribution, Field, Key, State, written_by
from views.matching import Matches, side_record, topics_of

PARTITION_KEYS = (
    Key(Field("topic", "string", "changelog topic"), "topic"),
    Key(Field("kafka_partition", "int", "partition"), "kafka_partition"),
)


def _count(name: str, kind: str, comment: str) -> State:
    return State(Field(name, "bigint", comment), f"if(kind = '{kind}', 1, 0)", "sum")


JOURNAL = Contribution(
    name="journal",  # start and end come from the offset log, see positions.rows
    condition="kind <> 'change' OR newest",
    keys=PARTITION_KEYS,
    states=(
        State(Field("start_offset", "bigint", "first offset of the epoch"), "null", "max"),
        State(Field("end_offset", "bigint", "first offset after the epoch"), "null", "max"),
        State(Field("records", "bigint", "records read: changes + duplicates + bad + tombstones + erased"), "1", "sum"),
        _count("changes", "change", "changes folded"),
        _count("bad", "bad", "bad records, kept whole in this epoch"),
        _count("tombstones", "tombstone", "records without a value"),
        State(Field("last_append_time", "timestamp", "the broker's time of the newest record"), "append_time", "max"),
        _count("erased", "erased", "records of guests who are erased"),
    ),
)

BAD_RECORDS = Contribution(
    name="bad",
    condition="kind = 'bad'",
    keys=(*PARTITION_KEYS, Key(Field("kafka_offset", "bigint", "offset"), "kafka_offset")),
    states=(
        State(Field("reason", "string", "why it is bad"), "reason", "newest"),
        State(Field("append_time", "timestamp", "the broker's time"), "append_time", "newest"),
        State(Field("key", "binary", "Kafka key"), "key", "newest"),
        State(Field("value", "binary", "the record whole"), "value", "newest"),
    ),
)

DEFERRED = "deferred"


def deferred(services: Sequence[str]) -> Contribution:
    """The changes of an epoch that views which defer leave to the batch layer, by topic-partition and service."""
    return Contribution(
        name=DEFERRED,
        condition=f"kind = 'change' AND newest AND {written_by(services)}",
        keys=(*PARTITION_KEYS, Key(Field("service_name", "string", "the batch source"), "service_name")),
        states=(State(Field("records", "bigint", "changes of it"), "1", "sum"),),
    )


SIDES = "sides"


def sides_of(views: Sequence[Matches]) -> Contribution:
    """The records of an epoch that matches can be made of, by partition: they go to the histories, not to the table."""
    topics = ", ".join(f"'{topic}'" for topic in topics_of(views))
    return Contribution(
        name=SIDES,
        condition=f"topic IN ({topics}) AND (newest OR weight = 0)",
        keys=(Key(Field("kafka_partition", "int", "partition"), "kafka_partition"),),
        states=(State(Field("records", "array<string>", "records with their sides"), side_record(views), "list"),),
    )
