"""Which version of a table a metadata file is."""

import pytest

from batch.maintenance import _version

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("s3://lake/warehouse/speed/main/metadata/00012-5f8c9b1e-7d1c-4c8e-9a55-2f1d.metadata.json", 12),
        ("warehouse/speed/main/metadata/100000-a.metadata.json", 100_000),
    ],
)
def test_the_version_is_in_the_name(file: str, version: int) -> None:
    assert _version(file) == version
