"""A schema gets a field while producers of both releases write: from the check of the schema to the column."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from changelog.envelope import encode, envelope
from tests.checkout import Checkout

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    try:
        yield made
    finally:
        made.run("anabranch down")


def changes(path: Path, when: str) -> Path:
    """A file of new orders, every other one by a producer that knows the new fields."""
    lines = []
    for number in range(40):
        order: dict[str, Any] = {
            "ref": f"{when}-{number}", "guestRef": f"g-{number}", "status": "PLACED", "currency": "GBP", "total": 5,
            "items": [{"sku": "a", "quantity": 1, "unitPrice": 5}], "createdAt": "2026-02-02T10:00:00.000Z",
            "modifiedAt": "2026-02-02T10:00:00.000Z",
        }  # fmt: skip
        if number % 2:
            order |= {"giftNote": "happy birthday"}
            order["items"][0] |= {"giftWrap": "blue"}
        made = encode(envelope("till", order["ref"], order)).decode()
        lines.append(f'{{"entity": "order", "envelope": {made}}}\n')
    path.write_text("".join(lines))
    return path


def test_a_field_comes_into_schema_archive_and_sql_and_nothing_is_lost(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run("anabranch up")
    checkout.run("anabranch simulate --rate 0 --records 500 --seed 3 --duplicates 0.05 --broken 0.02")
    checkout.run(f"anabranch load {changes(tmp_path / 'archived.jsonl', 'archived')}")
    checkout.run("anabranch wait")
    checkout.run("anabranch batch")
    checkout.run(f"anabranch load {changes(tmp_path / 'before.jsonl', 'before')}")
    checkout.run("anabranch wait")

    schema = checkout.root / "changelog" / "schemas" / "order.json"
    order = json.loads(schema.read_text())
    order["properties"]["giftNote"] = {"type": "string"}
    order["properties"]["items"]["items"]["properties"] = {
        "giftWrap": {"type": ["string", "null"]},
        **order["properties"]["items"]["items"]["properties"],
    }
    schema.write_text(json.dumps(order, indent=2))
    said = checkout.run("anabranch schema check")
    assert "allowed order.json $.properties.giftNote: a new optional property" in said
    assert "not released yet: order.json" in said
    checkout.run("anabranch schema release")
    assert "not released" not in checkout.run("anabranch schema check")

    checkout.run("anabranch generation new")
    checkout.run(f"anabranch load {changes(tmp_path / 'after.jsonl', 'after')}")
    checkout.run("anabranch wait")
    checkout.run("anabranch batch --no-publish")
    audited = (
        "SELECT count(*), count(json_extract(\"current\", '$.gift_note')) FROM ops.audit WHERE service_name = 'till'"
    )
    assert checkout.run("anabranch query --format csv", audited).splitlines()[1] == "120,0", "the view is of before"
    checkout.run("anabranch publish")
    assert checkout.run("anabranch query --format csv", audited).splitlines()[1] == "120,40"
    rows = checkout.run(
        "anabranch query --format csv",
        'SELECT split_part("current".ref, \'-\', 1), count(*), count("current".gift_note), '
        'count_if("current".items[1].gift_wrap = \'blue\') FROM lake.archive."order" '
        "WHERE service_name = 'till' AND kind = 'change' GROUP BY 1 ORDER BY 1",
    ).splitlines()
    assert rows[1:] == ["after,40,20,20", "archived,40,0,0", "before,40,20,20"], "what was archived before has null"
    latest = "SELECT count(*), sum(total) FROM serving.order_latest WHERE date(created_at) = DATE '2026-02-02'"
    assert checkout.run("anabranch query --format csv", latest).splitlines()[1] == "120,600.0000"
    versions = json.loads(checkout.run("anabranch audit --order after-1 --json"))["records"]
    assert versions[0]["current"]["gift_note"] == "happy birthday"
    verified = json.loads(checkout.run("anabranch verify --json"))
    assert verified["differences"] == []
    assert json.loads(checkout.run("anabranch batch --full --json"))["run"]["kind"] == "full"
    assert json.loads(checkout.run("anabranch verify --json"))["differences"] == []
