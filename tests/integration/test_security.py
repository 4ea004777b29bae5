"""Nobody does what is not his to do: every attempt is refused, by the servers themselves."""

import json
import stat
from contextlib import suppress

import httpx
import psutil
import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from infra import supervise
from infra.airflow import url
from infra.airflow_api import AirflowApi
from infra.identities import IDENTITIES, acting_as
from runtime import trino
from runtime.errors import TerminalError
from runtime.settings import Settings
from tests.integration.attempts import ATTEMPTS, Attempt, RefusedError, settings_for
from tests.services import batch, feed, query, run, secrets_of, shop
from views.registry import personal_columns

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def served(platform: Settings, lake: SparkSession) -> None:
    """There is something in both layers that could be read, changed or deleted."""
    feed(platform, shop(71, 400))
    run("wait")
    batch(lake, platform)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda one: f"{one.who}-{one.where}-{one.what}".replace(" ", "-"))
def test_it_is_refused(platform: Settings, attempt: Attempt, request: pytest.FixtureRequest) -> None:
    if attempt.where == "Kafka Connect":
        request.getfixturevalue("airflow")  # with which it is started
    with pytest.raises(RefusedError):
        attempt.do(settings_for(attempt, platform))


def as_user(settings: Settings, name: str, sql: str) -> list[list[object]]:
    return [list(row) for row in trino.execute(trino.connect(acting_as(settings, name)), sql)[1]]


def test_analysts_read_the_views_without_who_a_guest_is(platform: Settings) -> None:
    assert as_user(platform, "analyst", "SELECT sum(orders) FROM lake.serving.revenue") == [
        list(row) for row in query(platform, "SELECT sum(orders) FROM serving.revenue")
    ]
    for view, columns in personal_columns().items():
        for column in columns:
            sql = f"SELECT count(*), count_if({column} = '(hidden)') FROM lake.serving.{view}"
            ((rows, hidden),) = as_user(platform, "analyst", sql)
            assert rows == hidden, f"{view}.{column}"
            assert rows > 0 or view == "alerts", view  # type: ignore[operator]
    ((rows, hidden),) = as_user(
        platform, "engineer", "SELECT count(email), count_if(email = '(hidden)') FROM lake.serving.guest_latest"
    )
    assert rows > 0  # type: ignore[operator]
    assert hidden == 0


def test_engineers_read_everything(platform: Settings) -> None:
    for table in (
        "lake.archive.guest",
        "lake.speed.main",
        "lake.batch.revenue",
        "lake.ops.bad_records",
        "ops.public.runs",
    ):
        ((rows,),) = as_user(platform, "engineer", f"SELECT count(*) FROM {table}")
        assert rows >= 0  # type: ignore[operator]


@pytest.mark.parametrize(
    "name", ["' OR '1'='1", "x'; DROP TABLE publications; --", '"; DROP VIEW lake.serving.guest; --', "%"]
)
def test_what_is_given_stays_a_value(platform: Settings, name: str) -> None:
    before = query(platform, "SELECT count(*) FROM serving.guest_latest")
    found = json.loads(run("audit", "--guest", name, "--json"))
    assert found["records"] == []
    assert query(platform, "SELECT count(*) FROM serving.guest_latest") == before


def test_no_process_shows_a_secret(platform: Settings) -> None:
    secrets = secrets_of(platform)
    family = psutil.Process(supervise.proxy(platform).getPID()).children(recursive=True)
    looked_at = 0
    for process in family:
        with suppress(psutil.NoSuchProcess):  # one that has ended meanwhile shows nothing any more
            words, environment = process.cmdline(), process.environ()
            looked_at += 1
            assert [word for word in words if any(secret in word for secret in secrets)] == []
            own = {"MINIO_ROOT_PASSWORD"} if environment.get("ANABRANCH_SERVICE") == "minio" else set()
            assert {name for name, value in environment.items() if any(one in value for one in secrets)} <= own
    assert looked_at > 8
    for path in (platform.home / "logs").rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert [secret for secret in secrets if secret in text] == [], path


def test_only_the_owner_enters_the_home_and_services_know_no_other_secret(platform: Settings) -> None:
    assert stat.S_IMODE(platform.home.stat().st_mode) == 0o700
    for name in IDENTITIES:
        path = platform.home / "logins" / f"{name}.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for service in ("archiver", "derive", "speed", "commands"):
        pid = supervise.states(platform)[service]["pid"]
        assert psutil.Process(pid).environ()["ANABRANCH_SETTINGS"] == str(platform.home / "logins" / f"{service}.json")


def logged_in(settings: Settings, user: str, password: str) -> AirflowApi:
    login = {"user": user, "password": SecretStr(password)}
    return AirflowApi(settings.model_copy(update={"airflow": settings.airflow.model_copy(update=login)}))


def test_airflow_lets_engineers_run_dags_and_nothing_else(platform: Settings, airflow: AirflowApi) -> None:
    engineer = logged_in(platform, "engineer", platform.airflow.people["engineer"].get_secret_value())
    airflow.wait("backup", engineer.trigger("backup"), 200)
    with pytest.raises(TerminalError, match="Forbidden"):
        engineer.request("POST", "/api/v2/variables", {"key": "k", "value": "v"})
    for name, password in (("admin", "guessed"), ("analyst", platform.identities["analyst"].get_secret_value())):
        with pytest.raises(TerminalError, match="Invalid credentials"):
            logged_in(platform, name, password)
    asked = httpx.get(f"{url(platform)}/api/v2/dags", timeout=10)
    assert asked.status_code == httpx.codes.UNAUTHORIZED
