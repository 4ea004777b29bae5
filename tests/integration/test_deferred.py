"""Changes of a batch source: left to the batch side by a view that defers, counted until then, and right afterwards."""

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from changelog.envelope import encode, envelope
from changelog.producer import Record
from runtime import ops
from runtime.errors import ContractError
from runtime.settings import Settings
from serving import publication
from serving.compare import compare
from serving.verify import verify
from serving.wait import deferred
from speed.generation import resume
from tests.services import assert_exact, assert_verified, batch, feed, query, run
from views.registry import all_views

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SOLD = "SELECT quantity, revenue FROM serving.product_sales WHERE sku = 'bulk'"
SPENT = "SELECT sum(total_spend) FROM serving.guest_spend WHERE guest_ref LIKE 'bulk-%'"


def order(number: int, quantity: int, service: str) -> dict[str, Any]:
    """An order of product ``bulk``."""
    return {
        "ref": f"{service}-{number}", "guestRef": f"bulk-{number % 9}", "status": "PAID", "currency": "GBP",
        "total": quantity * 2, "items": [{"sku": "bulk", "quantity": quantity, "unitPrice": 2}],
        "createdAt": "2026-03-02T10:00:00.000Z", "modifiedAt": "2026-03-02T10:00:00.000Z",
    }  # fmt: skip


def written(service: str, name: str, current: Any, original: Any = None) -> Record:
    """A change of a service."""
    guest = (current or original)["guestRef"].encode()
    return Record("changelog.order", guest, encode(envelope(service, name, current, original)))


def counted(settings: Settings) -> dict[str, int]:
    """``serving.boundary``: deferred records of each view."""
    return dict(query(settings, "SELECT view, deferred_records FROM serving.boundary"))


@pytest.mark.slow
def test_a_bulk_import_comes_with_the_next_batch_run_where_a_view_defers(
    platform: Settings, lake: SparkSession
) -> None:
    deferring = {view.name for view in all_views() if view.defers}
    assert deferring == {"product_sales"}
    assert platform.speed.batch_services == ("bulk-import",)
    batch(lake, platform)
    made = [written("bulk-import", f"c{n}", order(n, 1, "bulk")) for n in range(40)]
    made += [written("bulk-import", f"u{n}", order(n, 3, "bulk"), order(n, 1, "bulk")) for n in range(10)]
    feed(platform, [*made, *made[:5], written("shop", "one", order(0, 7, "shop"))])  # five copies
    told = run("wait")
    assert "but for 50 changes of batch sources, which product_sales leaves to the next batch run" in told
    assert query(platform, SOLD) == [[Decimal(7), Decimal(14)]], "the shop's is there"
    assert query(platform, SPENT) == [[Decimal(30 * 2 + 10 * 6 + 14)]], "the others are late for nothing"
    assert counted(platform) == {view.name: 50 if view.name in deferring else 0 for view in all_views()}
    assert "left to the next batch run: 50 changes" in run("explain", "product_sales")
    report = verify(lake, platform)
    assert (report.differences, report.deferred) == ([], {"serving.product_sales": 50})
    new = batch(lake, platform, serve=False)
    compared = compare(platform, new.run_id)
    (found,) = (view for view in compared.views if view.differing)
    assert (found.view, found.deferred, compared.unexplained) == ("product_sales", 50, [])
    publication.publish(platform, new.run_id)
    assert query(platform, SOLD) == [[Decimal(30 + 30 + 7), Decimal(134)]]
    assert (deferred(platform), set(counted(platform).values())) == ({}, {0})
    assert_exact(platform)
    assert_verified(lake, platform)


@pytest.mark.slow
def test_changes_of_what_the_batch_side_has_and_a_rollback(platform: Settings, lake: SparkSession) -> None:
    """Late means: as it was at the boundary. Going back to an earlier boundary takes what came after it away again."""
    feed(platform, [written("bulk-import", f"d{n}", None, order(n, 1, "bulk")) for n in range(10, 40)])
    run("wait")
    assert query(platform, SOLD) == [[Decimal(67), Decimal(134)]]
    assert_verified(lake, platform)
    batch(lake, platform)
    assert query(platform, SOLD) == [[Decimal(37), Decimal(74)]]
    assert_exact(platform)
    publication.rollback(platform, [])
    try:
        assert query(platform, SOLD) == [[Decimal(67), Decimal(134)]]
        assert deferred(platform) == {"product_sales": 30}
        assert_verified(lake, platform)
    finally:
        publication.release(platform)
        batch(lake, platform)
    assert_exact(platform)


def test_who_is_deferred_is_settled_when_a_generation_begins(platform: Settings) -> None:
    speed = platform.speed.model_copy(update={"batch_services": ("bulk-import", "another")})
    with ops.connect(platform) as connection, pytest.raises(ContractError, match=r"another.*generation new"):
        resume(platform.model_copy(update={"speed": speed}), connection, "main")
