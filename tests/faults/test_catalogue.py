"""All cases of the catalogue, on the real processes: nothing is lost, nothing is doubled, no query lies."""

from collections.abc import Callable

import pytest
from _pytest.mark.structures import ParameterSet
from pyspark.sql import SparkSession

from runtime.settings import Settings
from tests.faults.catalogue import Fault, catalogue
from tests.faults.places import Checker
from tests.faults.report import Report
from tests.faults.scene import Scene


def cases() -> list[ParameterSet]:
    """A test for each case."""
    return [
        pytest.param(
            one,
            id=one.name,
            marks=[pytest.mark.timeout(one.seconds), *([] if one.quick else [pytest.mark.slow])],
        )
        for one in catalogue().values()
    ]


@pytest.mark.faults
@pytest.mark.parametrize("case", cases())
def test_fault(
    platform: Settings, checker: Checker, session: Callable[[], SparkSession], fault: Report, case: Fault
) -> None:
    fault.name, fault.what, fault.seed = case.name, case.what, case.seed
    scene = Scene(platform, case.seed, fault, checker, session)
    try:
        with scene.probed(case.refusable):
            case.steps(scene)
    finally:
        scene.close()


@pytest.mark.unit
def test_every_case_has_a_seed_of_its_own_and_says_what_it_does() -> None:
    all_cases = catalogue().values()
    assert len({one.seed for one in all_cases}) == len(all_cases)
    assert all(one.what.endswith(".") for one in all_cases)
    assert all("." in one.name for one in all_cases)
