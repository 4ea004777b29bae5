"""``load``: every line goes in or is refused, by its number and with a reason."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from changelog.producer import Record
from changelog.sources.load import opened, records
from runtime.errors import TerminalError
from runtime.settings import ENTITIES
from tests.unit.changelog.samples import KEY, SAMPLES, change

pytestmark = pytest.mark.unit

Refusals = list[tuple[str, int, str]]


def line(entity: str, current: Any, **more: Any) -> bytes:
    envelope = {**json.loads(change(current)), **more}
    return json.dumps({"entity": entity, "envelope": envelope}, ensure_ascii=False).encode()


def good(entity: str) -> bytes:
    return line(entity, SAMPLES[entity])


def load(lines: list[bytes]) -> tuple[list[Record], Refusals]:
    refusals: Refusals = []
    found = list(records(lines, "shop.jsonl", lambda name, number, reason: refusals.append((name, number, reason))))
    return found, refusals


@pytest.mark.parametrize("entity", ENTITIES)
def test_a_good_line_is_a_record_of_its_guest(entity: str) -> None:
    ((record,), refusals) = load([good(entity)])
    assert (record.topic, record.key) == (f"changelog.{entity}", KEY)
    assert record.value is not None
    assert json.loads(record.value) == json.loads(change(SAMPLES[entity]))
    assert refusals == []


def test_updates_and_deletes_go_in() -> None:
    order = SAMPLES["order"]
    found, refusals = load([line("order", order, original=order), line("order", None, original=order)])
    assert [record.key for record in found] == [KEY, KEY]
    assert refusals == []


def test_bad_lines_are_refused_by_number_and_the_others_go_in() -> None:
    lacking = {name: value for name, value in SAMPLES["order"].items() if name != "total"}
    lines = {
        b"{": "not JSON: ",
        b'{"entity": "order", "n": NaN}': "not JSON: ",
        b"\xff": "not JSON: ",
        b"[]": "not an object",
        b'{"entity": "order"}': "not an object",
        b'{"entity": "order", "envelope": []}': "not an object",
        line("basket", SAMPLES["order"]): "entity is 'basket'; there are guest, session, order, event",
        line("order", SAMPLES["guest"]): "the envelope names no guest: KeyError('guestRef')",
        line("order", lacking): 'schema: "total" is a required property (at $.current)',
        line("order", SAMPLES["order"], original={**SAMPLES["order"], "guestRef": "g-2"}): "a change of guest",
        line("event", SAMPLES["event"], original=SAMPLES["event"]): "an event is immutable",
    }
    found, refusals = load([part for bad in lines for part in (good("guest"), b"\n", bad + b"\n", b" \t\r\n")])
    assert len(found) == len(lines)
    assert {record.topic for record in found} == {"changelog.guest"}
    for n, ((name, number, reason), expected) in enumerate(zip(refusals, lines.values(), strict=True)):
        assert (name, number) == ("shop.jsonl", 4 * n + 3)
        assert reason.startswith(expected)


def test_an_entity_that_is_no_text_is_refused() -> None:
    for entity in (None, 5, True):
        found, refusals = load([json.dumps({"entity": entity, "envelope": {}}).encode()])
        assert found == []
        assert "entity is" in refusals[0][2]


@pytest.mark.parametrize(
    "written", ["0.1000000000000000055", "12.3400", "7.000", "9999999999998.9999", "-7", "-0.0", "1.5e3", "1.5E+3"]
)
def test_money_keeps_every_digit(written: str) -> None:
    text = good("order").replace(b'"total": 5.1', b'"total": ' + written.encode())
    text = text.replace(b'"unitPrice": 2.55', b'"unitPrice": ' + written.encode())
    ((record,), _) = load([text])
    assert record.value is not None
    assert record.value.count(b" " + written.encode() + b",") == 1
    assert record.value.count(b" " + written.encode() + b"}") == 1


@pytest.mark.parametrize(
    "around",
    [
        pytest.param('{"entity":"order","envelope":%s}', id="close"),
        pytest.param(' { "envelope" :\t%s , "entity" : "order" } \r\n', id="wide, envelope first"),
        pytest.param('{"a": [{"envelope": {}}], "entity": "order", "envelope": %s, "b": "\\"}"}', id="among others"),
        pytest.param('{"envelope": {}, "entity": "guest", "entity": "order", "envelope": %s}', id="the last counts"),
        pytest.param('{"entity": "order", "envel\\u006fpe": %s}', id="escaped name"),
    ],
)
def test_the_envelope_goes_in_as_it_stands_in_the_line(around: str) -> None:
    envelope = json.dumps(json.loads(change(SAMPLES["order"])), indent=1).replace("\n", " ").replace("g-1", "g\\u002d1")
    ((record,), refusals) = load([around.replace("%s", envelope).encode()])
    assert record.value == envelope.encode()
    assert refusals == []


def test_text_and_unknown_fields_stay_as_they_are() -> None:
    ((record,), _) = load([line("guest", {**SAMPLES["guest"], "firstName": "Zoë 🦊", "later": [1, None, {"a": "b"}]})])
    assert record.value is not None
    current = json.loads(record.value)["current"]
    assert (current["firstName"], current["later"]) == ("Zoë 🦊", [1, None, {"a": "b"}])


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(b"12345678901234567890123", id="integer beyond 64 bits"),
        pytest.param(b"1e-99999999999999999999", id="exponent beyond Decimal"),
        pytest.param(b"1e-1000000000000000000", id="more digits than memory"),
        pytest.param(b"[" * 300 + b"]" * 300, id="nested deeper than orjson writes"),
        pytest.param(b"[" * 1000 + b"]" * 1000, id="nested deeper than json reads"),
    ],
)
def test_no_line_keeps_the_next_from_going_in(odd: bytes) -> None:
    """Whether the odd line itself goes in or is refused."""
    found, refusals = load([good("event").replace(b'"quantity": null', b'"later": ' + odd), good("guest")])
    assert found[-1].topic == "changelog.guest"
    assert len(found) + len(refusals) == 2


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_file_is_read_by_name_and_unpacked_by_its_ending(tmp_path: Path, suffix: str) -> None:
    content = good("guest") + b"\n\n" + good("order")
    path = tmp_path / f"shop.{suffix}"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    with opened(str(path)) as lines:
        found, refusals = load(list(lines))
    assert [record.topic for record in found] == ["changelog.guest", "changelog.order"]
    assert refusals == []


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.jsonl.gz"])
def test_a_file_that_cannot_be_opened_is_an_error_with_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(TerminalError, match=f"{name} cannot be read"), opened(str(tmp_path / name)):
        pass


PACKED = gzip.compress(good("guest"))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(good("guest"), id="not packed"),
        pytest.param(PACKED[:-9], id="cut off"),
        pytest.param(PACKED[:10] + b"\xff" * 20, id="not deflated"),
        pytest.param(PACKED[:-8] + bytes(8), id="wrong checksum"),
    ],
)
def test_a_file_that_cannot_be_unpacked_is_an_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "shop.jsonl.gz"
    path.write_bytes(content)
    with opened(str(path)) as lines, pytest.raises(TerminalError, match=f"^{path}: cannot be read after line 0: "):
        list(records(lines, str(path), lambda *_: None))


def test_what_comes_before_the_damage_goes_in_and_the_error_names_the_line(tmp_path: Path) -> None:
    lines = [line("guest", {**SAMPLES["guest"], "later": hashlib.sha256(b"%d" % n).hexdigest()}) for n in range(5000)]
    packed = gzip.compress(b"\n".join(lines))
    path = tmp_path / "shop.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    found: list[Record] = []
    with opened(str(path)) as unpacked, pytest.raises(TerminalError) as damage:
        found.extend(records(unpacked, str(path), lambda *_: None))
    assert 0 < len(found) < 5000
    assert f"{path}: cannot be read after line {len(found)}: " in str(damage.value)
