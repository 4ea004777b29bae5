"""A home is made once: its secrets and its ports stay what they are, and differ from those of other homes."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra import home as homes
from infra.artifacts.install import Programs
from infra.home import BASES, Ports, choose_base, initialise, is_initialised, port_is_free, write_private
from infra.identities import IDENTITIES
from runtime.errors import PreflightError
from runtime.settings import Settings

pytestmark = pytest.mark.unit

SECRETS = (
    "s3.secret_key",
    "postgres_password",
    "supervisor_password",
    "catalog.password",
    "ops.password",
    "shop.password",
    "cdc.database.password",
    "airflow.database.password",
    "airflow.password",
    "airflow.fernet_key",
    "airflow.jwt_secret",
    "airflow.api_secret_key",
)


@contextmanager
def listening(port: int = 0, address: str = "127.0.0.1") -> Iterator[int]:
    with closing(socket.create_server((address, port))) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def bases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two free bases away from those that other installations on this machine would take."""
    free = [base for base in range(10_000, 19_000, 1000) if all(port_is_free(port) for port in Ports(base).all())]
    monkeypatch.setattr(homes, "BASES", free[:2])
    return free[:2]


def written(home: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((home / "settings.json").read_text())
    return content


def secrets_of(home: Path) -> list[str]:
    found = []
    for path in SECRETS:
        value: Any = written(home)
        for part in path.split("."):
            value = value[part]
        found.append(value)
    return found


def another(home: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs) -> Path:
    """A second home beside the first."""
    directory = home.with_name("another")
    monkeypatch.setenv("ANABRANCH_HOME", str(directory))
    initialise(programs)
    return directory


def test_a_home_is_initialised_once_it_has_settings(home: Path, programs: Programs) -> None:
    assert not is_initialised()
    settings = initialise(programs)
    assert is_initialised()
    assert settings.home == home
    assert settings.spark.jars == programs.spark_jars


def test_secrets_are_generated_once_for_each_home(
    home: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialise(programs)
    first = secrets_of(home)
    assert all(
        len(secret) >= (16 if name == "airflow.password" else 32) for name, secret in zip(SECRETS, first, strict=True)
    )
    initialise(programs)
    assert secrets_of(home) == first
    assert len({*first, *secrets_of(another(home, monkeypatch, programs))}) == 2 * len(SECRETS)


def test_only_the_owner_may_read_the_settings_whatever_the_umask(home: Path, programs: Programs) -> None:
    umask = os.umask(0)
    try:
        initialise(programs)
        (home / "settings.json").chmod(0o644)
        initialise(programs)
    finally:
        os.umask(umask)
    assert (home / "settings.json").stat().st_mode & 0o777 == 0o600
    written = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    identities = {f"logins/{name}.json" for name in IDENTITIES}
    assert written == {"settings.json", "config/tls/server.pem", "config/tls/certificate.pem", *identities}
    assert {(home / name).stat().st_mode & 0o777 for name in written} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_private_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_private(path, "one")
    with path.open() as before:
        write_private(path, "two")
        assert before.read() == "one"
    assert path.read_text() == "two"


def test_a_home_keeps_its_ports_and_learns_where_programs_are(home: Path, programs: Programs) -> None:
    first = initialise(programs)
    with listening(first.port_base):
        moved = initialise(replace(programs, spark_jars=Path("/elsewhere")))
    assert moved.port_base == first.port_base
    assert moved.spark.jars == Path("/elsewhere")
    assert moved.model_dump(exclude={"spark"}) == first.model_dump(exclude={"spark"})


def test_a_home_remembers_its_profile_and_begins_as_core(
    home: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert initialise(programs).profile == "core"
    assert initialise(programs, "full").profile == "full"
    monkeypatch.setenv("ANABRANCH_PROFILE", "core")
    assert initialise(programs).profile == "full", "the environment does not choose it"
    assert initialise(programs, "core").profile == "core"
    assert written(home)["profile"] == "core"


def test_a_home_of_an_earlier_version_gets_the_secrets_that_it_lacks(home: Path, programs: Programs) -> None:
    initialise(programs)
    earlier = {name: value for name, value in written(home).items() if name not in ("airflow", "profile")}
    write_private(home / "settings.json", json.dumps(earlier))
    settings = initialise(programs)
    assert settings.profile == "core"
    assert len(settings.airflow.fernet_key.get_secret_value()) == 44
    assert settings.airflow.database.port == Ports(settings.port_base).postgres
    assert {name: value for name, value in written(home).items() if name in earlier} == earlier


def test_every_port_in_the_settings_follows_from_the_base(home: Path, programs: Programs) -> None:
    settings = initialise(programs)
    ports = Ports(settings.port_base)
    assert settings.kafka.bootstrap == f"127.0.0.1:{ports.kafka}"
    assert settings.s3.endpoint == f"http://127.0.0.1:{ports.minio}"
    assert (settings.trino.host, settings.trino.port) == ("127.0.0.1", ports.trino)
    for database in (settings.catalog, settings.ops, settings.airflow.database):
        assert (database.host, database.port) == ("127.0.0.1", ports.postgres)


@pytest.mark.parametrize(
    "name", ["minio", "supervisor", "trino", "kafka", "kafka_controller", "postgres", "spark_ui", "airflow"]
)
def test_a_base_of_which_one_port_is_in_use_is_passed_over(
    home: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, bases: list[int], name: str
) -> None:
    first = initialise(programs)
    assert first.port_base == bases[0]
    with listening(getattr(Ports(first.port_base), name)):
        assert written(another(home, monkeypatch, programs))["port_base"] == bases[1]


def test_a_base_is_passed_over_too_where_a_port_beside_is_in_use(bases: list[int]) -> None:
    with listening() as port:
        assert choose_base(lambda base: [port] if base == bases[0] else []) == bases[1]


def test_no_free_base_is_said_with_the_remedy(home: Path, bases: list[int]) -> None:
    with (
        listening(bases[0]),
        listening(Ports(bases[1]).trino),
        pytest.raises(PreflightError, match="set ANABRANCH_PORT_BASE to a base of your own"),
    ):
        choose_base()


def test_the_environment_chooses_the_base_of_a_new_home(
    home: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_PORT_BASE", "19000")
    assert initialise(programs).kafka.bootstrap == "127.0.0.1:19092"


def test_a_base_in_the_environment_does_not_tear_a_home_apart_that_has_one(
    home: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialise(programs)
    monkeypatch.setenv("ANABRANCH_PORT_BASE", "19000")
    settings = initialise(programs)
    assert settings.kafka.bootstrap == f"127.0.0.1:{Ports(settings.port_base).kafka}"


def test_a_base_that_is_no_number_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_PORT_BASE", "high")
    with pytest.raises(PreflightError, match="ANABRANCH_PORT_BASE"):
        choose_base()


def test_the_defaults_of_the_settings_are_the_ports_of_the_default_base(home: Path) -> None:
    settings = Settings()
    ports = Ports(settings.port_base)
    assert (settings.kafka.bootstrap, settings.s3.endpoint, settings.trino.port, settings.ops.port) == (
        f"127.0.0.1:{ports.kafka}",
        f"http://127.0.0.1:{ports.minio}",
        ports.trino,
        ports.postgres,
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_on_which_somebody_listens_is_not_free(address: str) -> None:
    with listening(address=address) as port:
        assert not port_is_free(port)
    assert port_is_free(port)


def test_bases_do_not_overlap_and_lie_below_the_ports_of_outgoing_connections() -> None:
    ports = [port for base in BASES for port in Ports(base).all()]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32_768
    assert min(ports) > 1024
