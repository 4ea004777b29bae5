import pytest

pytest.register_assert_rewrite("tests.services")  # its assertions show what differs, as those of tests do
