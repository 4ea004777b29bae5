"""Hadoop's own SequenceFile reads what is written here, and what it writes is read here."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from changelog.archive import sequencefile
from changelog.archive.sequencefile import Writer, read

pytestmark = pytest.mark.property

Pairs = list[tuple[bytes, bytes]]

PAIRS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=12)
LARGE: Pairs = [(b"", b""), (b"k" * 300, b"\x00" * 70_000), (b"key", b"v" * 1_200_000), (b"\xff" * 4, b"last")]
LAW = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Hadoop:
    """Hadoop's writer and reader, in the session's JVM."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._path = path
        self._hadoop = self._jvm.org.apache.hadoop
        self._configuration = self._hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
        self._files = self._hadoop.fs.FileSystem.getLocal(self._configuration).getRaw()

    def read(self, data: bytes) -> Pairs:
        self._path.write_bytes(data)
        reader = self._hadoop.io.SequenceFile.Reader(
            self._files, self._hadoop.fs.Path(str(self._path)), self._configuration
        )
        key, value = self._hadoop.io.BytesWritable(), self._hadoop.io.BytesWritable()
        found: Pairs = []
        while reader.next(key, value):
            found.append((bytes(key.copyBytes()), bytes(value.copyBytes())))
        reader.close()
        return found

    def write(self, pairs: Pairs, kind: str, block_bytes: int = 1_000_000) -> bytes:
        self._configuration.setInt("io.seqfile.compress.blocksize", block_bytes)
        writable = self._jvm.java.lang.Class.forName("org.apache.hadoop.io.BytesWritable")
        codec = self._hadoop.io.compress.DefaultCodec()
        codec.setConf(self._configuration)
        metadata = self._hadoop.io.SequenceFile.Metadata()
        metadata.set(self._hadoop.io.Text("written by"), self._hadoop.io.Text("Hadoop"))
        writer = self._hadoop.io.SequenceFile.createWriter(
            self._files,
            self._configuration,
            self._hadoop.fs.Path(str(self._path)),
            writable,
            writable,
            4096,
            1,
            1 << 20,
            self._hadoop.io.SequenceFile.CompressionType.valueOf(kind),
            codec,
            None,
            metadata,
        )
        for key, value in pairs:
            writer.append(
                self._hadoop.io.BytesWritable(bytearray(key)), self._hadoop.io.BytesWritable(bytearray(value))
            )
        writer.close()
        return self._path.read_bytes()


@pytest.fixture
def hadoop(spark: SparkSession, tmp_path: Path) -> Hadoop:
    return Hadoop(spark, tmp_path / "file")


def written(pairs: Pairs, block_bytes: int) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequencefile, "BLOCK_BYTES", block_bytes)
        writer = Writer()
        for key, value in pairs:
            writer.append(key, value)
        return writer.close()


@given(pairs=PAIRS, block_bytes=st.sampled_from([1, 400, 1_000_000]))
@LAW
def test_hadoop_reads_what_we_write(hadoop: Hadoop, pairs: Pairs, block_bytes: int) -> None:
    assert hadoop.read(written(pairs, block_bytes)) == pairs


@pytest.mark.parametrize("kind", ["NONE", "RECORD", "BLOCK"])
@given(pairs=PAIRS, block_bytes=st.sampled_from([1, 400, 1_000_000]))
@LAW
def test_we_read_what_hadoop_writes(hadoop: Hadoop, kind: str, pairs: Pairs, block_bytes: int) -> None:
    assert list(read(hadoop.write(pairs, kind, block_bytes), "file")) == pairs


def test_hadoop_reads_large_records_of_ours(hadoop: Hadoop) -> None:
    assert hadoop.read(written(LARGE, 1_000_000)) == LARGE


@pytest.mark.parametrize("kind", ["NONE", "RECORD", "BLOCK"])
def test_we_read_large_records_of_hadoop(hadoop: Hadoop, kind: str) -> None:
    assert list(read(hadoop.write(LARGE, kind), "file")) == LARGE
