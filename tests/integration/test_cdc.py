"""The shop's database is captured: what is in its tables is in the views, whatever its application does."""

import json

import psycopg
import pytest

from changelog.sources.cdc import stream
from changelog.sources.cdc.database import prepare
from changelog.sources.cdc.mapper import Mark
from changelog.sources.cdc.mapping import TABLES
from changelog.sources.cdc.service import read_bad
from infra import platform, supervise
from infra.readiness import await_ready, superuser
from runtime import ops
from runtime.settings import Settings
from serving import watch as watching
from tests.services import query, run, status, until
from tests.shop import await_equal, captured, cdc, connected, meddle, tables, views

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TIME = "2026-11-21T10:00:00.123456Z"


def test_a_snapshot_of_what_was_there_and_what_the_application_does_then(capture: Settings) -> None:
    until(lambda: bool(cdc("whole")), 90, "the first snapshot is complete")
    await_equal(capture)
    assert all(tables(capture).values()), "nothing to see"
    done = json.loads(run("shop", "--rate", "40", "--seconds", "5", "--seed", "2", "--json"))
    assert done["transactions"] + done["abandoned"] == 200
    await_equal(capture)
    assert cdc("unknown") == 0


def test_status_and_watch_show_capture_with_its_lag(capture: Settings) -> None:
    listed = status()
    assert {listed[name]["state"] for name in ("connect", "cdc")} == {"running"}
    until(lambda: (cdc("connector") or {}).get("task") == "RUNNING", 30, "the connector's state is known")
    assert cdc("slot")["lost"] is False
    found = watching.watch(capture)
    assert found.lag["cdc"]["records"] is not None
    assert not [alert for alert in found.alerts if "connector" in alert or "slot" in alert]


def test_watch_tells_of_what_needs_somebody(capture: Settings) -> None:
    limit = capture.cdc.max_slot_wal_mb * 2**20
    cases = {
        "the connector does not run": {"connector": {"connector": "RUNNING", "task": "FAILED", "error": "why\nat x"}},
        "the replication slot is lost": {"slot": {"active": False, "lost": True, "behind_bytes": 0}},
        "the replication slot holds much WAL": {"slot": {"active": False, "lost": False, "behind_bytes": limit - 1}},
        "captured orders are not whole": {"unknown": 3},
    }
    with ops.connect(capture) as connection, connection.transaction(force_rollback=True):
        for alert, detail in cases.items():
            connection.execute("UPDATE services SET detail = %s WHERE name = 'cdc'", (json.dumps(detail),))
            assert watching.capture(capture, connection).keys() == {alert}


def test_money_is_exact_and_a_change_of_key_or_guest_is_a_delete_and_a_create(capture: Settings) -> None:
    with connected(capture) as shop:
        with shop.transaction():
            for customer in (900_001, 900_002):
                shop.execute("INSERT INTO customers VALUES (%s, 'A', NULL, NULL, 'GB', %s, %s)", (customer, TIME, TIME))
            shop.execute(
                "INSERT INTO orders VALUES (900001, 900001, NULL, 'PLACED', 'GBP', NULL, 1234567890123.4567, %s, %s)",
                (TIME, TIME),
            )
            shop.execute("INSERT INTO order_items VALUES (900001, 1, 's', NULL, 0.3333, 3703703670370.7405)")
        shop.execute("UPDATE orders SET customer_id = 900002 WHERE id = 900001")
        shop.execute("UPDATE orders SET id = 900003 WHERE id = 900001")
        shop.execute("UPDATE customers SET id = 900004 WHERE id = 900002")
    await_equal(capture)
    told = [
        (guest, "original" in made, made.get("current", {}).get("total"))
        for entity, guest, made, _ in captured(capture)
        if entity == "order"
        and (made.get("current") or made["original"])["ref"] in ("shop-order-900001", "shop-order-900003")
    ]
    assert {str(total) for *_, total in told if total is not None} == {"1234567890123.4567"}
    assert sorted((guest, deleted) for guest, deleted, _ in told) == [
        ("shop-guest-900001", False), ("shop-guest-900001", True),
        ("shop-guest-900002", False), ("shop-guest-900002", False), ("shop-guest-900002", True),
        ("shop-guest-900002", True), ("shop-guest-900004", False),
    ]  # fmt: skip


def test_a_row_that_the_log_refuses_stops_nothing_and_does_not_vanish(capture: Settings) -> None:
    with connected(capture) as shop:
        order = shop.execute("SELECT max(id) FROM orders WHERE currency IS NOT NULL AND id < 900000").fetchone()
        assert order
        shop.execute("UPDATE orders SET currency = NULL, modified_at = now() WHERE id = %s", order)
        shop.execute("INSERT INTO order_items VALUES (%s, 77, 'added while bad', NULL, 1, 1)", order)
        shop.execute("UPDATE customers SET country = 'IT' WHERE id = 900001")
    until(lambda: "IT" in str(views(capture)["guest_latest"]), 60, "what came after it is there")
    ref = f"shop-order-{order[0]}"
    assert ("order", ref) in read_bad(capture)
    bad = query(capture, f"SELECT count(*) FROM ops.bad_records WHERE from_utf8(value) LIKE '%{ref}\"%'")
    assert bad == [[2]], "the layers keep them whole"
    with connected(capture) as shop:
        shop.execute("UPDATE orders SET currency = 'EUR' WHERE id = %s", order)
    await_equal(capture)
    assert ("order", ref) not in read_bad(capture)


def test_large_values_that_an_update_does_not_touch_stay(capture: Settings) -> None:
    with connected(capture) as shop:
        shop.execute("ALTER TABLE customers ALTER COLUMN last_name SET STORAGE EXTERNAL")
        shop.execute("UPDATE customers SET last_name = repeat('long ', 4000) WHERE id = 900001")
        shop.execute("UPDATE customers SET country = 'PT' WHERE id = 900001")
    await_equal(capture)
    with connected(capture) as shop:
        shop.execute("UPDATE customers SET last_name = NULL WHERE id = 900001")


def test_truncate_deletes_all(capture: Settings) -> None:
    with connected(capture) as shop, shop.transaction():
        shop.execute("TRUNCATE order_items, orders")
        shop.execute("INSERT INTO orders VALUES (900010, 900001, NULL, 'PAID', 'GBP', 'GB', 1, %s, %s)", (TIME, TIME))
    await_equal(capture)
    assert len(views(capture)["order_latest"]) == 1
    run("shop", "--rate", "50", "--seconds", "2", "--seed", "3")
    await_equal(capture)


def test_an_added_column_and_a_new_table_are_no_outage(capture: Settings) -> None:
    written = len(captured(capture))
    with connected(capture) as shop:
        shop.execute("ALTER TABLE customers ADD COLUMN phone text DEFAULT 'none'")
        shop.execute("UPDATE customers SET phone = '123' WHERE id = 900001")
        shop.execute("CREATE TABLE invoices (n int)")
        shop.execute("INSERT INTO invoices VALUES (1)")
        shop.execute("UPDATE invoices SET n = 2")
        shop.execute("UPDATE customers SET country = 'SE' WHERE id = 900001")
    await_equal(capture)
    assert len(captured(capture)) == written + 1, "a column that nobody mapped is no change of a guest"
    with psycopg.connect(superuser(capture, capture.cdc.database.name), autocommit=True) as connection:
        shop_tables = [*TABLES, "invoices"]
        connection.execute("ALTER TABLE invoices ADD PRIMARY KEY (n)")
        prepare(connection, capture, shop_tables)  # published, and mapped by nobody
    with connected(capture) as shop:
        with shop.transaction():
            shop.execute("UPDATE invoices SET n = 3")
            shop.execute("UPDATE customers SET country = 'NO' WHERE id = 900001")
        shop.execute("DROP TABLE invoices")
        shop.execute("ALTER TABLE customers DROP COLUMN phone")
    await_equal(capture)


def test_a_snapshot_by_request_writes_what_the_log_lacks_and_nothing_else(capture: Settings) -> None:
    """Somebody deletes a guest and an order in the log behind the shop's back."""
    await_equal(capture)
    there = tables(capture)
    meddle(capture, {min(there[view])[0]: None for view in ("guest_latest", "order_latest")})
    before = len(captured(capture))
    until(lambda: len(views(capture)["order_latest"]) < len(tables(capture)["order_latest"]), 60, "the mistake is seen")
    snapshots = cdc("snapshots")
    run("cdc", "snapshot", "customers", "orders")
    until(lambda: cdc("snapshots") == snapshots + 1, 90, "the snapshot is complete")
    await_equal(capture)
    assert len(captured(capture)) == before + 2


@pytest.mark.slow
def test_capture_begins_anew_without_writing_what_is_known(capture: Settings) -> None:
    """The slot is lost with what it had not given, and the connector's offsets with it."""
    supervise.stop_services(capture, ["connect"])
    run("shop", "--rate", "50", "--seconds", "2", "--seed", "4")
    with connected(capture) as shop:
        shop.execute("DELETE FROM orders WHERE customer_id = 900001")
        shop.execute("DELETE FROM customers WHERE id = 900001")
    with psycopg.connect(capture.cdc.database.dsn, autocommit=True) as connection:
        until(lambda: drop(connection, capture), 30, "the slot is dropped")
    supervise.start_service(capture, "connect")
    await_ready(capture, "connect", 90)
    before, snapshots = captured(capture), cdc("snapshots")
    run("cdc", "anew")
    until(lambda: cdc("snapshots") == snapshots + 1, 90, "the snapshot is complete")
    await_equal(capture)
    new = captured(capture)
    assert len(new) - len(before) < 150, "only what differs is written"
    run("shop", "--rate", "50", "--seconds", "2", "--seed", "5")
    await_equal(capture)


def drop(connection: psycopg.Connection[tuple[object, ...]], settings: Settings) -> bool:
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (settings.cdc.slot,))
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_up_again_changes_nothing(capture: Settings) -> None:
    before, life = len(captured(capture)), (stream.committed(capture) or (0, ""))[1]
    platform.start_capture(capture, lambda _: None)
    until(lambda: cdc("connector")["task"] == "RUNNING", 30, "the connector runs")
    assert len(captured(capture)) == before
    assert Mark.from_json((stream.committed(capture) or (0, ""))[1]).life == Mark.from_json(life).life
