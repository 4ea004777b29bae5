"""The shop's application: transactions over several tables, as people and clerks cause them. Everything is generated.

It knows its database and nothing else: no topic, no envelope. The same seed on the same rows does the same things, at
other times of day.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg

from changelog.sources.simulate import CHANNELS, COUNTRIES, NEXT_STATUS, SKUS

Connection = psycopg.Connection[Any]

KNOWN = 5_000
"""So many customers, sessions and orders are looked up at the start to go on with; older ones are left alone."""


class AbandonedError(Exception):
    """Somebody thought better of it: the transaction is rolled back."""


class Application:
    """One clerk with a connection (autocommit) as the application; another may be put in its place. ``done`` counts
    committed transactions by what they were, ``abandoned`` those rolled back."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self._random = random.Random(seed)  # a simulation
        self._customers = self._known("SELECT id FROM customers ORDER BY id DESC LIMIT %s")
        self._sessions = self._known("SELECT id FROM sessions WHERE ended_at IS NULL ORDER BY id DESC LIMIT %s")
        self._orders = self._known("SELECT id FROM orders ORDER BY id DESC LIMIT %s")
        self.done: Counter[str] = Counter()
        self.abandoned = 0
        self._doings: list[tuple[Callable[[], None], float]] = [
            (self._sign_up, 10), (self._visit, 14), (self._leave, 8), (self._order, 24), (self._advance, 14),
            (self._amend, 10), (self._rename_item, 3), (self._cancel_several, 3), (self._delete_order, 3),
            (self._give_away, 2), (self._renumber_order, 1), (self._renumber_customer, 1), (self._move_house, 5),
            (self._forget_customer, 1), (self._wander, 1),
        ]  # fmt: skip

    def act(self) -> None:
        """One transaction. Raises psycopg.Error if the database does not take it; then nothing of it happened."""
        doings, weights = zip(*self._doings, strict=True)
        doing = self._random.choices(doings, weights)[0]
        if len(self._customers) < 5:
            doing = self._sign_up
        elif not self._orders:
            doing = self._order
        elif not self._sessions and doing == self._leave:
            doing = self._visit
        before = list(self._customers), list(self._sessions), list(self._orders)
        try:
            with self.connection.transaction():
                doing()
                if self._random.random() < 0.02:
                    raise AbandonedError
            self.done[doing.__name__.strip("_")] += 1
        except BaseException as error:
            self._customers, self._sessions, self._orders = before
            if not isinstance(error, AbandonedError):
                raise
            self.abandoned += 1

    def run(self, rate: float, seconds: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """``rate`` transactions a second for so many seconds, counted from the beginning so that nothing drifts."""
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            ahead = began + number / rate - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)
            if stopped() or time.monotonic() - began > seconds * 2:
                return
            self.act()

    def _known(self, sql: str) -> list[int]:
        return [row[0] for row in reversed(self.connection.execute(sql, (KNOWN,)).fetchall())]

    def _insert(self, sql: str, *values: object) -> int:
        row = self.connection.execute(f"{sql} RETURNING id", values).fetchone()
        assert row is not None
        return int(row[0])

    def _do(self, sql: str, *values: object) -> int:
        """Rows that were changed."""
        return self.connection.execute(sql, values).rowcount

    def _one(self, sql: str, *values: object) -> Any:
        row = self.connection.execute(sql, values).fetchone()
        return row[0] if row else None

    def _sign_up(self) -> None:
        first, (country, _) = self._random.choice(("Ada", "Grace", "Edsger", "Barbara")), self._random.choice(COUNTRIES)
        self._customers.append(
            self._insert(
                "INSERT INTO customers (first_name, email, country, created_at, modified_at) "
                "VALUES (%s, %s, %s, %s, %s)",
                first, f"{first.lower()}@example.com", country, now(), now(),
            )
        )  # fmt: skip

    def _visit(self) -> None:
        self._sessions.append(
            self._insert(
                "INSERT INTO sessions (customer_id, channel, started_at, modified_at) VALUES (%s, %s, %s, %s)",
                self._random.choice(self._customers), self._random.choice(CHANNELS), now(), now(),
            )
        )  # fmt: skip

    def _leave(self) -> None:
        session = self._sessions.pop(self._random.randrange(len(self._sessions)))
        self._do("UPDATE sessions SET ended_at = %s, modified_at = %s WHERE id = %s", now(), now(), session)

    def _order(self) -> None:
        country, currency = self._random.choice(COUNTRIES)
        customer = self._random.choice(self._customers)
        session = self._one("SELECT id FROM sessions WHERE customer_id = %s ORDER BY id DESC LIMIT 1", customer)
        order = self._insert(
            "INSERT INTO orders (customer_id, session_id, status, currency, country, total, created_at, modified_at) "
            "VALUES (%s, %s, 'PLACED', %s, %s, 0, %s, %s)",
            customer, session, currency, country, now(), now(),
        )  # fmt: skip
        for line in range(1, self._random.randint(2, 5)):
            self._put_item(order, line)
        self._total(order)
        self._orders.append(order)

    def _advance(self) -> None:
        order = self._random.choice(self._orders)
        status = self._one("SELECT status FROM orders WHERE id = %s FOR UPDATE", order)
        following = NEXT_STATUS.get(status, status)
        self._do("UPDATE orders SET status = %s, modified_at = %s WHERE id = %s", following, now(), order)

    def _amend(self) -> None:
        order = self._random.choice(self._orders)
        last = self._one("SELECT max(line) FROM order_items WHERE order_id = %s", order) or 0
        if last > 1 and self._random.random() < 0.4:
            self._do("DELETE FROM order_items WHERE order_id = %s AND line = %s", order, self._random.randint(1, last))
        else:
            self._put_item(order, last + 1)
        self._total(order)

    def _rename_item(self) -> None:
        """A clerk mends a name: the order's own row is not touched."""
        order, name = self._random.choice(self._orders), f"name {self._random.randrange(100)}"
        self._do("UPDATE order_items SET name = %s WHERE order_id = %s AND line = 1", name, order)

    def _cancel_several(self) -> None:
        some = self._random.sample(self._orders, min(3, len(self._orders)))
        self._do("UPDATE orders SET status = 'CANCELLED', modified_at = %s WHERE id = ANY(%s)", now(), some)

    def _delete_order(self) -> None:
        self._do("DELETE FROM orders WHERE id = %s", self._orders.pop(self._random.randrange(len(self._orders))))

    def _give_away(self) -> None:
        order, customer = self._random.choice(self._orders), self._random.choice(self._customers)
        self._do("UPDATE orders SET customer_id = %s, modified_at = %s WHERE id = %s", customer, now(), order)

    def _renumber_order(self) -> None:
        at = self._random.randrange(len(self._orders))
        self._orders[at] = self._renumber("orders", self._orders[at])

    def _renumber_customer(self) -> None:
        at = self._random.randrange(len(self._customers))
        self._customers[at] = self._renumber("customers", self._customers[at])

    def _renumber(self, table: str, old: int) -> int:
        new = int(self._one(f"SELECT nextval(pg_get_serial_sequence('{table}', 'id'))"))
        self._do(f"UPDATE {table} SET id = %s, modified_at = %s WHERE id = %s", new, now(), old)
        return new

    def _move_house(self) -> None:
        customer, country = self._random.choice(self._customers), self._random.choice(COUNTRIES)[0]
        self._do("UPDATE customers SET country = %s, modified_at = %s WHERE id = %s", country, now(), customer)

    def _forget_customer(self) -> None:
        customer = self._random.choice(self._customers)
        orders = [
            row[0] for row in self.connection.execute("SELECT id FROM orders WHERE customer_id = %s", (customer,))
        ]
        self._do("DELETE FROM orders WHERE customer_id = %s", customer)
        self._do("DELETE FROM customers WHERE id = %s", customer)
        self._customers.remove(customer)
        gone = set(orders)
        self._orders = [order for order in self._orders if order not in gone]
        there = self.connection.execute("SELECT id FROM sessions WHERE id = ANY(%s)", (self._sessions,)).fetchall()
        left = {row[0] for row in there}
        self._sessions = [session for session in self._sessions if session in left]

    def _wander(self) -> None:
        """Something is made, changed and taken back within one transaction: outside, nothing has happened."""
        customer = self._insert(
            "INSERT INTO customers (email, created_at, modified_at) VALUES ('none@example.com', %s, %s)", now(), now()
        )
        self._do("UPDATE customers SET country = 'FR' WHERE id = %s", customer)
        self._do("DELETE FROM customers WHERE id = %s", customer)

    def _put_item(self, order: int, line: int) -> None:
        sku, price = self._random.choice(SKUS)
        self._do(
            "INSERT INTO order_items (order_id, line, sku, quantity, unit_price) VALUES (%s, %s, %s, %s, %s)",
            order, line, sku, self._random.randint(1, 5), price * Decimal("1.00"),
        )  # fmt: skip

    def _total(self, order: int) -> None:
        self._do(
            "UPDATE orders SET total = (SELECT coalesce(sum(quantity * unit_price), 0) FROM order_items "
            "WHERE order_id = orders.id), modified_at = %s WHERE id = %s",
            now(), order,
        )  # fmt: skip


def now() -> datetime:
    """The shop's clock."""
    return datetime.now(UTC)
