"""JSON of rows in Trino's SQL, field by field."""

import pytest

from serving.json_sql import Type, json_of, parse

pytestmark = pytest.mark.unit

ORDER = "row(ref varchar, total decimal(18, 4), items array(row(sku varchar, at timestamp(6) with time zone)))"


def test_types_are_read_as_trino_writes_them() -> None:
    assert parse(ORDER) == Type(
        fields=(
            ("ref", Type("varchar")),
            ("total", Type("decimal(18, 4)")),
            ("items", Type(element=Type(fields=(
                ("sku", Type("varchar")), ("at", Type("timestamp(6) with time zone")),
            )))),
        )
    )  # fmt: skip
    assert parse('row("a ""b" double precision)').fields[0][0] == 'a "b'
    assert parse("decimal(18,4)").text == "decimal(18,4)"


@pytest.mark.parametrize(
    "text", ["", "row()", "row(a)", "row(a varchar", "array(varchar", "varchar)", "row(a varchar,b x)"]
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no type|no name|is missing"):
        parse(text)


@pytest.mark.parametrize(
    ("type_", "sql"),
    [
        ("varchar", "CAST(x AS JSON)"),
        ("array(varchar)", "CAST(x AS JSON)"),
        ("timestamp(6) with time zone", "CAST(CAST(x AS timestamp(6)) AS JSON)"),
        ("array(timestamp(3) with time zone)", "CAST(transform(x, item0 -> CAST(item0 AS timestamp(3))) AS JSON)"),
        ("row(a bigint)", 'CAST(if(x IS NULL, NULL, CAST(row(x."a") AS row("a" bigint))) AS JSON)'),
    ],
)
def test_every_field_is_named_and_times_lose_their_zone(type_: str, sql: str) -> None:
    assert json_of("x", type_) == sql


def test_rows_in_arrays_in_rows() -> None:
    made = json_of("x", ORDER)
    assert made.count("(") == made.count(")")
    assert 'transform(x."items", item0 -> if(item0 IS NULL, NULL, CAST(row(item0."sku", CAST(item0."at" ' in made
    assert 'AS row("ref" varchar, "total" decimal(18, 4), "items" array(row("sku" varchar, "at" timestamp(6))))' in made
