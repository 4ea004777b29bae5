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

from batch.erasure import blot
from batch.search import decoded
from changelog.archive.secor import pack_key
from changelog.archive.sequencefile import Writer
from changelog.erased import pattern
from runtime.errors import TerminalError

pytestmark = pytest.mark.unit

WANTED = pattern(("guest-1", "a@b.example"))


def is_found(name: str, data: bytes) -> bool:
    return any(WANTED.search(part) for part in decoded(name, data))


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
    [("a.parquet", parquet), ("raw/x.deflate", sequence_file), ("a.avro", avro), ("backups/a.zip", backup)],
)
def test_a_guest_is_found_inside_and_nobody_else_is(name: str, made: Callable[[str], bytes]) -> None:
    assert is_found(name, made("guest-1"))
    assert not is_found(name, made("guest-12"))


def test_the_list_of_requests_in_a_backup_is_left_out() -> None:
    assert not is_found("backups/a.zip", backup("guest-1", "erasures"))


def test_an_avro_file_that_cannot_be_read_is_not_passed_over() -> None:
    with pytest.raises(TerminalError, match="zstandard"):
        list(decoded("a.avro", avro("guest-1", b"zstandard")))


def test_plain_text_is_searched_as_it_is() -> None:
    assert is_found("v1.metadata.json", json.dumps({"x": "a@b.example"}).encode())
    assert not is_found("v1.metadata.json", gzip.compress(b"nothing"))


def test_a_log_keeps_its_length_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "service.log"
    path.write_bytes(b"order of guest-1 refused\nguest-12 stays\n")
    with path.open("ab") as open_by_a_service:
        blot(path, WANTED)
        open_by_a_service.write(b"more\n")
    assert path.read_bytes() == b"order of ******* refused\nguest-12 stays\nmore\n"
