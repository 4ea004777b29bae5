"""Which differences are drift, and how both sides are asked."""

import pytest

from serving.drift import Differing, Row, comparison_sql, stay

pytestmark = pytest.mark.unit


def row(ref: str, digest: str | None = "a") -> Row:
    return Row(ref, "changed", ("country",), digest)


def looks(*answers: Differing) -> tuple[Differing, Differing, list[Differing]]:
    asked: list[Differing] = []

    def again(open_: Differing) -> Differing:
        asked.append(open_)
        return answers[len(asked)]

    stayed, moving = stay(answers[0], again)
    return stayed, moving, asked


def test_where_nothing_differs_nobody_looks_again() -> None:
    assert looks({"guest": {}, "order": {}}) == ({"guest": {}, "order": {}}, {"guest": {}, "order": {}}, [])


def test_what_is_there_at_the_second_look_was_on_its_way() -> None:
    stayed, moving, asked = looks({"guest": {"g": row("g")}}, {"guest": {}})
    assert (stayed, moving, len(asked)) == ({"guest": {}}, {"guest": {}}, 1)


@pytest.mark.parametrize("digest", ["a", None])
def test_what_still_differs_and_was_not_changed_has_drifted(digest: str | None) -> None:
    one = row("g", digest)
    assert looks({"guest": {"g": one}}, {"guest": {"g": one}})[0] == {"guest": {"g": one}}


def test_what_the_database_changed_is_looked_at_once_more() -> None:
    stayed, moving, asked = looks(
        {"guest": {"g": row("g", "a"), "h": row("h")}},
        {"guest": {"g": row("g", "b"), "h": row("h"), "new": row("new")}},
        {"guest": {"g": row("g", "b")}},
    )
    assert (stayed, moving) == ({"guest": {"g": row("g", "b"), "h": row("h")}}, {"guest": {}})
    assert [set(open_["guest"]) for open_ in asked] == [{"g", "h"}, {"g"}]


def test_what_is_changed_at_each_look_says_nothing() -> None:
    stayed, moving, _ = looks(*({"order": {"o": row("o", digest)}} for digest in "abc"))
    assert (stayed, moving) == ({"order": {}}, {"order": {"o": row("o", "c")}})


def test_only_what_is_asked_for_is_read() -> None:
    sql = comparison_sql("shop-", {"order": {"shop-order-7", "shop-order-o'clock"}, "guest": set()})
    assert sql.count("system.query") == 1
    assert "WHERE t.id IN (7)" in sql
    assert "'shop-order-o''clock'" in sql


def test_a_ref_that_is_no_key_of_the_database_is_looked_for_in_the_view_alone() -> None:
    assert "WHERE t.id IN (NULL)" in comparison_sql("shop-", {"guest": {"shop-guest-x"}})
