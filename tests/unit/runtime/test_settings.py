"""Settings: defaults, then the home's file, then the environment; nothing is taken that is not known."""

import json
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from infra.airflow import database_url
from runtime.settings import ENTITIES, Database, Settings, entity_of, home_directory, read, topic_of

pytestmark = pytest.mark.unit


def write(home: Path, content: object) -> None:
    (home / "settings.json").write_text(json.dumps(content))


def test_the_environment_wins_over_the_file_and_the_file_over_defaults_field_by_field(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Settings()
    write(home, {"kafka": {"bootstrap": "file:1", "partitions": 7}, "port_base": 21_000})
    monkeypatch.setenv("ANABRANCH_KAFKA__BOOTSTRAP", "environment:1")
    settings = Settings()
    assert settings.kafka.bootstrap == "environment:1"
    assert (settings.kafka.partitions, settings.port_base) == (7, 21_000)
    assert settings.kafka.retention_ms == defaults.kafka.retention_ms
    assert settings.trino == defaults.trino


def test_a_database_over_a_network_is_believed_by_its_certificate_by_all_drivers() -> None:
    said = {"name": "ops", "user": "ops"}
    plain = Database.model_validate(said)
    assert plain.jdbc_url == "jdbc:postgresql://127.0.0.1:29432/ops"
    assert conninfo_to_dict(plain.dsn).keys() == {"host", "port", "dbname", "user", "password"}
    proven = Database.model_validate({**said, "ssl_mode": "verify-full", "ca_file": "/etc/ca & co.pem"})
    query = dict(parse_qsl(urlsplit(proven.jdbc_url).query))
    assert query == {"sslmode": "verify-full", "sslrootcert": "/etc/ca & co.pem"}
    assert query.items() <= conninfo_to_dict(proven.dsn).items()
    assert query == dict(parse_qsl(urlsplit(database_url(proven)).query))


def test_what_the_process_is_told_wins_over_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_PORT_BASE", "21000")
    assert Settings(port_base=22_000).port_base == 22_000


def test_variables_that_are_not_settings_are_no_obstacle(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "MAVEN_URL", "SERVICE", "KILL_AT"):
        monkeypatch.setenv(f"ANABRANCH_{name}", "x")
    assert Settings().home == home


@pytest.mark.parametrize(
    "content",
    [
        {"kafak": {"bootstrap": "a:1"}},
        {"port_bse": 1},
        {"kafka": {"bootstrp": "a:1"}},
    ],
    ids=["section", "value", "value of a section"],
)
def test_an_unknown_key_of_the_file_is_refused(home: Path, content: object) -> None:
    write(home, content)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Settings()


def test_an_unknown_field_in_the_environment_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_KAFKA__BOOTSTRP", "a:1")
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Settings()


@pytest.mark.parametrize("content", [{"kafka": {"partitions": "many"}}, {"port_base": "high"}])
def test_a_value_of_the_wrong_type_is_refused_by_name(home: Path, content: dict[str, object]) -> None:
    write(home, content)
    with pytest.raises(ValidationError, match=next(iter(content))):
        Settings()


@pytest.mark.parametrize("database", ["ops", "catalog"])
def test_a_single_field_of_a_database_can_come_from_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setenv(f"ANABRANCH_{database.upper()}__PASSWORD", "hidden")
    assert getattr(Settings(), database).name == database


@pytest.mark.parametrize(
    "content",
    [
        {"ops": {"password": ["hidden"]}},
        {"ops": {"passwrd": "hidden"}},
        {"s3": {"secret_key": {"is": "hidden"}}},
        {"postgres_password": ["hidden"]},
    ],
)
def test_a_refusal_shows_no_secret(home: Path, content: dict[str, object]) -> None:
    write(home, content)
    with pytest.raises(ValidationError, match=next(iter(content))) as refused:
        Settings()
    assert "hidden" not in f"{refused.value} {refused.value!r}"


def test_secrets_are_not_shown_by_accident(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, {"ops": {"name": "ops", "user": "ops", "password": "hidden"}, "s3": {"secret_key": "hidden"}})
    monkeypatch.setenv("ANABRANCH_POSTGRES_PASSWORD", "hidden")
    settings = Settings()
    assert "hidden" not in f"{settings} {settings!r} {settings.model_dump()} {settings.ops.jdbc_url}"
    assert settings.ops.dsn.endswith("password=hidden")


@pytest.mark.parametrize("password", ["with space", "back\\slash"])
def test_any_password_reaches_the_database(home: Path, password: str) -> None:
    write(home, {"ops": {"name": "ops", "user": "ops", "password": password}})
    assert conninfo_to_dict(Settings().ops.dsn)["password"] == password


@pytest.mark.parametrize(("variable", "found"), [("/a/b", "/a/b"), ("here", "{cwd}/here"), ("", "{cwd}/.anabranch")])
def test_the_home_is_absolute_and_by_default_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANABRANCH_HOME", variable)
    assert home_directory() == Path(found.format(cwd=tmp_path))


def test_topics_and_entities_name_each_other(home: Path) -> None:
    assert Settings().topics == tuple(topic_of(entity) for entity in ENTITIES)
    assert [entity_of(topic) for topic in Settings().topics] == list(ENTITIES)


def test_what_commands_go_on_with_is_no_batch_source(home: Path) -> None:
    write(home, {"commands": {"succeeds": ["old", "bulk"]}, "speed": {"batch_services": ["bulk"]}})
    with pytest.raises(ValidationError, match="both name bulk"):
        Settings()


def test_a_container_is_given_its_settings_as_a_file_of_any_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, {"trino": {"port": 1}})
    given = home / "given"
    given.write_text(json.dumps({"trino": {"port": 2}, "s3": {"region": "there"}}))
    monkeypatch.setenv("ANABRANCH_SETTINGS", str(given))
    monkeypatch.setenv("ANABRANCH_S3__REGION", "here")
    assert (Settings().trino.port, Settings().s3.region) == (2, "here")
    assert (read(given).trino.port, read(given).s3.region) == (2, "there"), "the file alone"
    assert read(home / "settings.json").trino.port == 1
