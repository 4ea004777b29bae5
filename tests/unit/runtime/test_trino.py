"""Which failures of Trino's are those of its connection to the catalog's database."""

from typing import Any

import pytest

from runtime.trino import is_stale

pytestmark = pytest.mark.unit

DEAD = {"type": "org.postgresql.util.PSQLException", "message": "This connection has been closed."}


@pytest.mark.parametrize(
    ("failure", "stale"),
    [
        (None, False),
        ({"type": "io.trino.spi.TrinoException", "message": "no"}, False),
        (DEAD, True),
        ({"type": "org.apache.iceberg.jdbc.UncheckedSQLException", "cause": DEAD}, True),
        ({"type": "java.lang.RuntimeException", "cause": {"type": "java.io.IOException"}}, False),
    ],
)
def test_the_cause_is_the_driver_of_postgresql(failure: dict[str, Any] | None, stale: bool) -> None:
    assert is_stale(failure) is stale
