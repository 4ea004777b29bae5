"""The lake's catalog as sessions are told of it."""

import pytest

from runtime.settings import Settings
from runtime.spark import lake_catalog

pytestmark = pytest.mark.unit

DELETES = ".s3.delete-enabled"


def test_a_session_deletes_no_file_of_the_lake_unless_it_is_made_for_that() -> None:
    usual, deleting = lake_catalog(Settings()), lake_catalog(Settings(), deletes=True)
    assert (usual.pop(DELETES), deleting.pop(DELETES)) == ("false", "true")
    assert usual == deleting
