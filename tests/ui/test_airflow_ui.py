"""What people do in Airflow's interface, in a real browser."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from infra.airflow import url
from infra.airflow_api import AirflowApi
from runtime import ops
from runtime.settings import Settings
from runtime.version import ROOT
from serving.publication import release
from serving.published import current
from tests.services import assert_exact, feed, run, shop
from views.registry import view_names

pytestmark = [pytest.mark.ui, pytest.mark.timeout(600)]

SCREENSHOTS = ROOT / "test-results"
"""Kept by the test run."""

TASK_SECONDS = 300
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def page(airflow: AirflowApi, platform: Settings) -> Iterator[Page]:
    """A browser at Airflow's first page, logged in through its form."""
    assert CHROMIUM, "Chromium is missing: apt-get install chromium"
    SCREENSHOTS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        opened = browser.new_page(viewport={"width": 1400, "height": 1000})
        opened.set_default_timeout(60_000)
        opened.goto(url(platform))
        opened.get_by_label("Username").fill(platform.airflow.user)
        opened.get_by_label("Password").fill(platform.airflow.password.get_secret_value())
        opened.get_by_role("button", name="Sign in").click()
        opened.wait_for_url(f"{url(platform)}/")
        yield opened
        browser.close()


def form(page: Page, platform: Settings, dag: str) -> Locator:
    """Open a DAG's page and its trigger form."""
    page.goto(f"{url(platform)}/dags/{dag}")
    page.get_by_role("button", name="Trigger").first.click()
    return page.get_by_role("dialog")


def triggered(page: Page, dialog: Locator, dag: str) -> str:
    """Send the form. Returns the id of the run, at whose page the browser is then."""
    dialog.get_by_role("button", name="Trigger").click()
    page.wait_for_url(f"**/dags/{dag}/runs/**")
    return page.url.rpartition("/runs/")[2].partition("?")[0].replace("%3A", ":").replace("%2B", "+")


def succeeds(page: Page, tasks: int) -> None:
    """Await that the run's page shows success: of the run, and of each task."""
    expect(page.get_by_text("Success", exact=True)).to_have_count(1 + tasks, timeout=TASK_SECONDS * 1000)


def keep(page: Page, name: str) -> Path:
    """Keep a picture of what is seen."""
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path)
    return path


def publications(settings: Settings) -> dict[str, int]:
    with ops.connect(settings) as connection:
        return {view.view: view.publication for view in current(connection)}


def test_the_dags_are_listed(page: Page, platform: Settings) -> None:
    page.goto(f"{url(platform)}/dags")
    for dag in (
        "airflow_cleanup",
        "backup",
        "batch_views",
        "drift",
        "full_recompute",
        "maintenance",
        "replay",
        "rollback",
        "watch",
    ):
        expect(page.get_by_role("link", name=dag, exact=True).first).to_be_visible()
    keep(page, "dags")


def test_two_views_are_computed_anew_and_rolled_back_through_the_forms(
    page: Page, platform: Settings, airflow: AirflowApi
) -> None:
    feed(platform, shop(seed=401, records=300))
    run("wait")
    before = publications(platform)
    dialog = form(page, platform, "full_recompute")
    for name in view_names():
        if name not in ("revenue", "traffic"):
            dialog.get_by_label(f"Remove {name}", exact=True).click()
    expect(dialog.get_by_label("Remove revenue")).to_be_visible()
    keep(page, "full_recompute-form")
    dag_run = triggered(page, dialog, "full_recompute")
    succeeds(page, tasks=5)
    keep(page, "full_recompute-run")
    assert airflow.result("full_recompute", dag_run, "publish")["views"] == ["revenue", "traffic"]
    after = publications(platform)
    assert after["order_latest"] == before["order_latest"]
    assert after["revenue"] == after["traffic"] > max(before.values())
    assert_exact(platform)

    dialog = form(page, platform, "rollback")
    dag_run = triggered(page, dialog, "rollback")
    succeeds(page, tasks=1)
    keep(page, "rollback-run")
    number = airflow.result("rollback", dag_run, "rollback")["publication"]
    assert publications(platform) | {"revenue": number, "traffic": number} == publications(platform)
    assert number > after["revenue"]
    assert release(platform)
    assert_exact(platform)
