"""What a source makes is judged before it is sent, as both layers judge it afterwards."""

from collections.abc import Callable, Iterable, Iterator

from changelog.producer import Record
from changelog.validation import check
from runtime.settings import entity_of

RefuseRecord = Callable[[Record, str], None]
"""Called with a record and the reason why it does not go in."""


def checked(records: Iterable[Record], refuse: RefuseRecord) -> Iterator[Record]:
    """Those of ``records`` that are changes, in their order; every other one is refused."""
    for record in records:
        reason = check(entity_of(record.topic), record.key, record.value or b"").reason
        if reason is None:
            yield record
        else:
            refuse(record, reason)
