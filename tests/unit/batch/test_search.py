"""What compresses or encodes its content is read before it is searched."""

import gzip
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch.erasure import blot, without
from batch.search import Wanted, in_record, pieces, place_in
from changelog.archive.secor import pack_key
from changelog.archive.sequencefile import Writer

pytestmark = pytest.mark.unit

WANTED = Wanted("guest-1", ("a@b.example", "order-1"))
NUMBER = Wanted("17850", ("a@b.example",))


OBJECT = "raw/changelog.order/dt=2026-05-01/hr=10/1_0_00000000000000000001.deflate"


def is_found(name: str, data: bytes, wanted: Wanted = WANTED) -> bool:
    return place_in(wanted, name, data) is not None


def parquet(who: str) -> bytes:
    out = io.BytesIO()
    rows = [{"items": [{"sku": f"sku of {who}"}], "key": b"k", "flags": {"a": "b"}}] + [
        {"items": [{"sku": f"s{n}"}], "key": os.urandom(4), "flags": {}} for n in range(1000)
    ]
    kind = pa.schema([
        ("items", pa.list_(pa.struct([("sku", pa.string())]))), ("key", pa.binary()),
        ("flags", pa.map_(pa.string(), pa.string())),
    ])  # fmt: skip
    made = [{**row, "flags": list(row["flags"].items())} for row in rows]  # type: ignore[attr-defined]  # a dict
    pq.write_table(pa.Table.from_pylist(made, schema=kind), out, compression="zstd", write_statistics=False)
    return out.getvalue()


def sequence_file(who: str) -> bytes:
    writer = Writer()
    writer.append(pack_key(1, 2, who.encode()), b"{}" * 1000)
    return writer.close()


def avro(who: str, codec: bytes = b"deflate") -> bytes:
    def long(number: int) -> bytes:
        number, made = number << 1, b""
        while number > 0x7F:
            made, number = made + bytes([number & 0x7F | 0x80]), number >> 7
        return made + bytes([number])

    def text(value: bytes) -> bytes:
        return long(len(value)) + value

    packer = zlib.compressobj(wbits=-15)
    block = packer.compress(b"\0" * 500 + who.encode() + b"\0" * 500) + packer.flush()
    about = long(2) + text(b"avro.schema") + text(b'"bytes"') + text(b"avro.codec") + text(codec) + long(0)
    return b"Obj\x01" + about + b"S" * 16 + long(1) + text(block) + b"S" * 16


def backup(who: str, table: str = "alerts") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"ops/{table}.copy", b"1\t\\\\x" + who.encode().hex().encode() + b"\t\\N\n")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "made"),
    [("a.parquet", parquet), (OBJECT, sequence_file), ("a.avro", avro), ("backups/a.zip", backup)],
)
def test_a_guest_is_found_inside_and_nobody_else_is(name: str, made: Callable[[str], bytes]) -> None:
    assert is_found(name, made("guest-1"))
    assert not is_found(name, made("guest-12"))


def test_the_list_of_requests_in_a_backup_is_left_out() -> None:
    assert not is_found("backups/a.zip", backup("guest-1", "erasures"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.avro", avro("nobody", b"zstandard")),
        ("a.avro", avro("nobody")[:-20]),
        ("a.avro", avro("nobody")[:-9]),
        ("a.parquet", parquet("nobody")[:-9]),
        (OBJECT, sequence_file("nobody")[:-9]),
        (OBJECT, b"not a SequenceFile"),
        ("backups/a.zip", backup("nobody")[:-9]),
    ],
)
def test_what_cannot_be_read_to_its_end_is_not_passed_over(name: str, data: bytes) -> None:
    assert "cannot be read" in (place_in(WANTED, name, data) or "")
    assert place_in(WANTED, name, b"") is None


def test_a_ref_that_is_a_number_is_found_where_guests_are_named_and_nowhere_else() -> None:
    assert is_found(OBJECT, sequence_file("17850"), NUMBER)
    assert not is_found(OBJECT, sequence_file("178501"), NUMBER)
    for said, there in (('{"guestRef": "17850"}', True), ('{"ref": "17850"}', False), ('{"sku": "17850"}', False)):
        assert in_record(NUMBER, "", "changelog.order", b"2", said.encode()) is there
        assert in_record(NUMBER, "", "latest.order", b"17850", said.encode()) is there
    assert in_record(NUMBER, "", "changelog.order", b"17850", b"")
    assert in_record(NUMBER, "", "latest.guest", b"17850", b"")
    assert in_record(NUMBER, "", "latest.guest", b"2", b'{"ref": "17850"}')
    assert not is_found("v1.metadata.json", b'{"snapshot-id": 17850, "x": "17850"}', NUMBER)
    table = pa.table({"guest_ref": ["17850"], "sku": ["1"]}), pa.table({"guest_ref": ["1"], "sku": ["17850"]})
    for rows, there in zip(table, (True, False), strict=True):
        out = io.BytesIO()
        pq.write_table(rows, out)
        assert is_found("a.parquet", out.getvalue(), NUMBER) is there


def test_a_broken_record_of_somebody_else_with_a_ref_of_an_order_is_passed_over_as_it_is_not_rewritten() -> None:
    for value, there in ((b'{"ref": "order-1', False), (b'{"email": "\\u0061@b.example', True), (b"of guest-1", True)):
        assert in_record(WANTED, "", "changelog.order", b"other", value) is there
        writer = Writer()
        writer.append(pack_key(1, 2, b"other"), value)
        assert is_found(OBJECT, writer.close()) is there
    assert in_record(WANTED, "", "latest.order", b"order-1", b"")


@pytest.mark.parametrize(
    ("row", "there"),
    [
        ({"id": 1}, True),
        ({"id": 12}, False),
        ({"id": 5, "customer_id": 1}, True),
        ({"id": 5, "customer_id": 12}, False),
    ],
)
def test_rows_of_the_shop_are_found_by_their_numbers(row: dict[str, int], there: bool) -> None:
    table = "orders" if "customer_id" in row else "customers"
    source = {"schema": "public", "table": table, "txId": 1}
    read = {"op": "r", "source": source, "before": None, "after": row}
    deleted = {"op": "d", "source": source, "transaction": {"total_order": 1}, "before": row, "after": None}
    wanted = Wanted("shop-guest-1")
    for said in (read, deleted):
        assert in_record(wanted, "shop-", "cdc.shop", b"", json.dumps(said).encode()) is there
    assert not in_record(wanted, "shop-", "cdc.shop", b"", b"not of Debezium")


def test_in_a_database_texts_lose_what_identifies_and_nothing_else() -> None:
    assert without(WANTED, "", "guest-1 and guest-12", False) == "erased and guest-12"
    assert without(WANTED, "", '{"ref": "\\u0067uest-1"}', False) == "erased"
    conf = {"ref": "17850", "17850": 17850, "vector": {"1": 17850}, "note": "17850 of a@b.example"}
    kept = json.loads(without(NUMBER, "guest", json.dumps(conf), True))
    assert kept == {**conf, "ref": "erased", "note": "17850 of erased"}
    assert without(NUMBER, "", json.dumps(conf["vector"]), True) == json.dumps(conf["vector"])


def test_a_file_is_searched_in_pieces_that_cut_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batch.search.PIECE", 4)
    path = tmp_path / "store"
    path.write_bytes(b"xguest-1\0guest-1\nend")
    assert list(pieces(path)) == [b"xguest-1\0", b"guest-1\n", b"end"]
    assert list(pieces(tmp_path / "gone")) == []


def test_plain_text_is_searched_as_it_is() -> None:
    assert is_found("v1.metadata.json", json.dumps({"x": "a@b.example"}).encode())
    assert not is_found("v1.metadata.json", gzip.compress(b"nothing"))


def test_a_log_keeps_its_length_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    path.write_bytes(b"order of guest-1, Ann, refused\nguest-12 stays\n")
    with path.open("ab") as open_by_a_service:
        blot(path, WANTED)
        open_by_a_service.write(b"more\n")
    assert path.read_bytes() == b"*" * 30 + b"\nguest-12 stays\nmore\n"
