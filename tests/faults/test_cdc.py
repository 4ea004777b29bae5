"""Connector, mapper and database are killed while the shop's application works: nothing is lost, nothing is twice."""

import json
import signal

import psycopg
import pytest

from changelog.sources.cdc import capture as capturing
from infra import supervise
from infra.readiness import await_ready
from runtime.settings import Settings
from tests.faults.report import kill
from tests.faults.test_kills import go_on, points, run_until_killed, stop
from tests.services import run, start, status, until
from tests.shop import await_equal, cdc, connected, meddle, tables, writing

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SEEDS = {"cdc.before-commit": 11, "cdc.produced": 12, "cdc.after-commit": 13, "cdc.before-commit#3": 14}


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", points("cdc.before-commit", "cdc.produced", "cdc.after-commit", "cdc.before-commit#3")
)
def test_the_mapper_dies_around_its_commit(capture: Settings, point: str) -> None:
    await_equal(capture)
    stop(capture, "cdc")
    with writing(capture, SEEDS[point], 40):
        run_until_killed("changelog.sources.cdc", point)
        go_on(capture, "cdc")
    await_equal(capture)


@pytest.mark.slow
def test_the_mapper_dies_while_it_writes_a_snapshot_in_parts(capture: Settings) -> None:
    """A new life of the stream finds thousands of differences; the mapper has written some of them."""
    await_equal(capture)
    stop(capture, "cdc")
    stop(capture, "connect")
    with connected(capture) as shop:
        shop.execute(
            "INSERT INTO customers (first_name, created_at, modified_at) SELECT 'c' || n, now(), now() "
            "FROM generate_series(1, 5000) n"
        )
        shop.execute("DELETE FROM order_items WHERE order_id IN (SELECT id FROM orders ORDER BY id LIMIT 5)")
    supervise.start_service(capture, "connect")
    await_ready(capture, "connect", 90)
    capturing.anew(capture, lambda _: None)
    with writing(capture, 15, 20):
        run_until_killed("changelog.sources.cdc", "cdc.part-of-snapshot#2")
        go_on(capture, "cdc")
        until(lambda: bool(cdc("whole")), 90, "the snapshot is complete")
    await_equal(capture)


@pytest.mark.slow
@pytest.mark.parametrize("name", points("postgres", "connect"))
def test_connector_or_database_die_while_the_application_works(capture: Settings, name: str) -> None:
    """Three times each, at whatever they are doing, large transactions and a snapshot among it."""
    await_equal(capture)
    with writing(capture, 16 + len(name), 40) as application:
        for number in range(3):
            large(capture, number)
            if number == 1:
                capturing.snapshot(capture, [])
            killed, before = status()[name]["pid"], sum(application.done.values())
            kill(killed)
            until(lambda: status()[name]["pid"] not in (None, killed), 60, "it is started again")  # noqa: B023
            await_ready(capture, name, 120)
            until(lambda: sum(application.done.values()) > before + 20, 60, "the application works")  # noqa: B023
    await_equal(capture, 240)


def large(settings: Settings, number: int) -> None:
    """A transaction that takes the connector a while, with many rows in one record of the WAL."""
    with connected(settings) as shop, shop.cursor() as cursor, shop.transaction():
        with cursor.copy("COPY customers (first_name, created_at, modified_at) FROM STDIN") as copy:
            for row in range(3000):
                copy.write_row((f"copied {number} {row}", "2026-11-21 10:00+00", "2026-11-21 10:00+00"))
        cursor.execute("UPDATE customers SET country = 'GB' WHERE first_name LIKE %s", (f"copied {number} %",))
        cursor.execute("DELETE FROM customers WHERE first_name LIKE %s", (f"copied {number} %9",))


@pytest.mark.slow
def test_drift_dies_between_a_request_and_its_content(capture: Settings) -> None:
    await_equal(capture)
    guest = min(tables(capture)["guest_latest"])[0]
    meddle(capture, {guest: {"country": "XX"}})
    killed = start("drift", ANABRANCH_KILL_AT="republish.opened")
    killed.communicate(timeout=300)
    assert killed.returncode == -signal.SIGKILL
    with psycopg.connect(capture.cdc.database.dsn) as connection:
        left = connection.execute("SELECT content FROM cdc.republication").fetchall()
    assert left == [(None,)]
    assert json.loads(run("drift", "--json"))["guest"]["action"] == "republished"
    await_equal(capture)


@pytest.mark.slow
def test_all_of_them_die_again_and_again_while_others_come_back(capture: Settings) -> None:
    await_equal(capture)
    with writing(capture, 30, 60) as application:
        for number in range(9):
            name = ("connect", "cdc", "postgres")[number % 3]
            before, pid = sum(application.done.values()), status()[name]["pid"]
            if pid is not None:
                kill(pid)
            pause = 60 * (number % 4)  # whatever the others are at then
            until(lambda: sum(application.done.values()) > before + pause, 90, "the application works")  # noqa: B023
    for name in ("postgres", "connect", "cdc"):
        await_ready(capture, name, 120)
    await_equal(capture, 240)


@pytest.mark.slow
def test_a_slot_that_is_lost_is_told_of_and_made_anew_by_up(capture: Settings) -> None:
    """Nobody reads for so long that PostgreSQL gives up what the slot would need; then somebody runs `up`."""
    await_equal(capture)
    stop(capture, "connect")
    with psycopg.connect(capture.cdc.database.dsn, autocommit=True) as connection:
        until(lambda: dropped(connection, capture.cdc.slot), 30, "the slot is dropped")
    run("shop", "--rate", "50", "--seconds", "2", "--seed", "31")
    supervise.start_service(capture, "connect")
    await_ready(capture, "connect", 90)
    until(lambda: (cdc("connector") or {}).get("task") == "FAILED", 60, "the connector says that it cannot go on")
    capturing.ensure(capture, lambda _: None)
    await_equal(capture)


def dropped(connection: psycopg.Connection[tuple[object, ...]], slot: str) -> bool:
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg.errors.ObjectInUse:
        return False
    return True
