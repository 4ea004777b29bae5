"""What a source makes is judged before it is sent, as both layers judge it afterwards."""

from collections.abc import Callable, Iterable, Iterator

from changelog.erased import NOBODY, Erased
from changelog.producer import Record
from changelog.validation import check
from runtime.settings import entity_of

RefuseRecord = Callable[[Record, str], None]
"""Called with a record and the reason why it does not go in."""


IS_ERASED = "this guest is erased, for good"


def checked(records: Iterable[Record], refuse: RefuseRecord, erased: Erased = NOBODY) -> Iterator[Record]:
    """Those of ``records`` that are changes, in their order; every other one is refused, and those of erased guests."""
    for record in records:
        reason = (
            IS_ERASED
            if erased.has(record.key)
            else check(entity_of(record.topic), record.key, record.value or b"").reason
        )
        if reason is None:
            yield record
        else:
            refuse(record, reason)
