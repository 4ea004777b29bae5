"""The page about all views is what the definitions say."""

import pytest

from infra.commands_views import views_page
from runtime.version import ROOT

pytestmark = pytest.mark.unit


def test_the_page_of_views_is_up_to_date() -> None:
    page = (ROOT / "docs" / "views.md").read_text()
    assert page == views_page(), "make it anew: uv run anabranch views --markdown > docs/views.md"
