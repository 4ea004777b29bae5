"""Approximate measures on real Trino: their errors, and that it does not matter in which pieces they were merged."""

from itertools import pairwise

import numpy as np
import pytest

from runtime.settings import Settings
from tests.services import query
from views.aggregate import Aggregate, Count, Quantiles
from views.algebra import Field, Key
from views.hyperloglog import MAX_SPARSE, encode, entries_of, merge

pytestmark = pytest.mark.integration

SIZES = (1, 2, 10, 100, MAX_SPARSE, MAX_SPARSE + 1, 1_000, 5_000, 20_000, 100_000, 1_000_000)


def sketches(size: int, pieces: int) -> list[bytes]:
    """Sketches of ``size`` different values, dealt to ``pieces``."""
    hashes = np.random.default_rng(size).integers(0, 2**64, size, dtype=np.uint64)
    return [encode(part) for part in np.array_split(entries_of(hashes), pieces)]


def estimates(settings: Settings, parts: list[bytes]) -> tuple[int, int]:
    """What Trino says of the sketches merged by Trino, and merged by us."""
    rows = ", ".join(f"(from_hex('{part.hex()}'))" for part in parts)
    ((theirs, ours),) = query(
        settings,
        f"SELECT cardinality(merge(CAST(s AS HyperLogLog))), cardinality(CAST(from_hex('{merge(parts).hex()}') AS "
        f"HyperLogLog)) FROM (VALUES {rows}) AS t(s)",
    )
    return theirs, ours


@pytest.mark.parametrize("size", SIZES)
def test_distinct_is_within_three_percent_and_the_same_however_it_was_merged(platform: Settings, size: int) -> None:
    found = {estimate for pieces in (1, 2, 3) for estimate in estimates(platform, sketches(size, min(pieces, size)))}
    assert len(found) == 1
    assert abs(found.pop() - size) <= 0.03 * size


VIEW = Aggregate(
    name="v",
    comment="",
    entity="order",
    keys=(Key(Field("country", "string", ""), "country"),),
    measures=(Count("orders", ""), Quantiles("x", "x", {"low": 0.05, "half": 0.5, "high": 0.95}, "")),
)


@pytest.mark.parametrize("size", [1, 2, 3, 100, 10_000, 1_000_000])
@pytest.mark.parametrize("power", [0.1, 1, 3, -3])
def test_quantiles_are_within_one_percent_of_a_value_that_is_there(platform: Settings, size: int, power: float) -> None:
    """Values (n - size / 10) ** power, the sign kept: even, skewed, some negative, one of them 0."""
    shift = size // 10
    spread = f"CAST(sign(n) * pow(abs(n), {power}) * 1e-5 AS decimal(38, 4))" if power > 0 else (
        f"CAST(IF(n = 0, 0, sign(n) * pow(abs(n), {power}) * 1e6) AS decimal(38, 4))")  # fmt: skip
    numbers = (
        f"SELECT {spread} AS x FROM (SELECT a * 1000 + b - {shift} AS n FROM UNNEST(sequence(0, {(size - 1) // 1000})) "
        f"AS t(a), UNNEST(sequence(0, 999)) AS u(b) WHERE a * 1000 + b < {size})"
    )
    (bucket,) = (key.expression for key in VIEW.contribution.keys if key.field.name == "x_bucket")
    buckets = f"SELECT {bucket} AS x_bucket FROM ({numbers})"
    states = f"SELECT 'DE' AS country, x_bucket, count(*) AS rows FROM ({buckets}) GROUP BY 2"
    ((_, orders, *found),) = query(platform, VIEW.read_sql(states))
    assert orders == size
    ranks = [max(1, int(np.ceil(share * size))) for share in (0.05, 0.5, 0.95)]
    exact = query(
        platform,
        f"SELECT x FROM (SELECT x, row_number() OVER (ORDER BY x) AS rank FROM ({numbers})) "
        f"WHERE rank IN ({', '.join(map(str, ranks))}) ORDER BY rank",
    )
    values = [float(row[0]) for row in exact]
    expected = (
        values if len(values) == len(ranks) else [dict(zip(sorted(set(ranks)), values, strict=True))[r] for r in ranks]
    )
    for mine, truth in zip(map(float, found), expected, strict=True):
        assert abs(mine - truth) <= 0.0100001 * abs(truth) + 0.0001
    assert all(low <= high for low, high in pairwise(map(float, found)))
