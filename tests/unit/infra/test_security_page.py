"""SECURITY.md names every attempt that the tests make, and no other."""

import pytest

from runtime.version import ROOT
from tests.integration.attempts import table

pytestmark = pytest.mark.unit


def test_the_page_has_the_attempts() -> None:
    assert table() in (ROOT / "SECURITY.md").read_text(), "put there what tests.integration.attempts.table() says"
