"""A home: the one directory of an installation. Made once: ports, secrets and directories stay what they are."""

import base64
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.artifacts.install import Programs
from infra.certificates import is_good, make_certificate
from infra.identities import ADMIN, IDENTITIES, ORCHESTRATING, file_of
from runtime.errors import PreflightError
from runtime.settings import Profile, Settings, home_directory, read

BASES = range(29000, 19000, -1000)
"""Where the ports of a new home may begin, in order of preference; all below the range of outgoing connections."""

HOSTS = ("localhost", "127.0.0.1")
"""What the query engine is called."""


@dataclass(frozen=True)
class Ports:
    """Every port of an installation follows from one base."""

    base: int

    @property
    def minio(self) -> int:
        return self.base

    @property
    def minio_console(self) -> int:
        return self.base + 1

    @property
    def supervisor(self) -> int:
        return self.base + 9

    @property
    def trino(self) -> int:
        return self.base + 80

    @property
    def trino_inside(self) -> int:
        """Where its nodes speak with each other."""
        return self.base + 82

    @property
    def airflow(self) -> int:
        return self.base + 81

    @property
    def connect(self) -> int:
        return self.base + 83

    @property
    def kafka(self) -> int:
        return self.base + 92

    @property
    def kafka_controller(self) -> int:
        return self.base + 93

    @property
    def postgres(self) -> int:
        return self.base + 432

    @property
    def spark_ui(self) -> int:
        return self.base + 40

    def all(self) -> list[int]:
        return [
            self.minio,
            self.minio_console,
            self.supervisor,
            self.spark_ui,
            self.trino,
            self.trino_inside,
            self.airflow,
            self.connect,
            self.kafka,
            self.kafka_controller,
            self.postgres,
        ]


def port_is_free(port: int) -> bool:
    """Whether nothing listens on the port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_base(more: Callable[[int], Iterable[int]] = lambda _: ()) -> int:
    """``$ANABRANCH_PORT_BASE``, or the first base whose ports are all free. ``more``: base → ports beside ``Ports``."""
    wanted = os.environ.get("ANABRANCH_PORT_BASE")
    if wanted:
        if not wanted.isdecimal() or not 1024 <= int(wanted) <= 65_000:
            raise PreflightError(f"ANABRANCH_PORT_BASE is {wanted!r}; it has to be a number from 1024 to 65000")
        return int(wanted)
    for base in BASES:
        if all(port_is_free(port) for port in (*Ports(base).all(), *more(base))):
            return base
    raise PreflightError("no free block of ports from 20000 to 29999; set ANABRANCH_PORT_BASE to a base of your own")


def is_initialised() -> bool:
    """Whether this home has been made."""
    return (home_directory() / "settings.json").exists()


def initialise(programs: Programs, profile: Profile | None = None, spark_classes: Path | None = None) -> Settings:
    """Make the home, or take it as it is; in both cases note where the programs, and Spark's classes, are. Returns its
    settings.

    ``profile``: what it is to run from now on; None leaves what it was, at first core. Secrets are generated, also
    those that an earlier version did not know, and ``settings.json`` is for its owner only (0600).
    """
    home = home_directory()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)  # what is in it is guests' too
    path = home / "settings.json"
    written = json.loads(path.read_text()) if path.exists() else generated(Ports(choose_base()))
    written = completed(written, home)
    written["profile"] = profile or written.get("profile", "core")
    written["trino"]["ca_file"] = str(certificate_file(home))
    written["spark"] = {
        **written.get("spark", {}),
        "jars": str(programs.spark_jars),
        "classes": str(spark_classes) if spark_classes else None,
    }
    write_private(path, json.dumps(written, indent=1) + "\n")
    if not is_good(certificate_file(home), HOSTS):
        public, private = make_certificate(HOSTS)
        write_private(certificate_file(home).with_name("server.pem"), private)
        write_private(certificate_file(home), public)
    settings = Settings()
    for name in IDENTITIES:  # of what is written: the environment has its say when the file is read
        write_private(identity_file(settings, name), file_of(read(path), name))
    return settings


def identity_file(settings: Settings, name: str) -> Path:
    """Where the settings of an identity are."""
    return settings.home / "logins" / f"{name}.json"


def certificate_file(home: Path) -> Path:
    """By which clients of the home's query engine know that they speak with it; ``server.pem`` beside it is its own."""
    return home / "config" / "tls" / "certificate.pem"


def generated(ports: Ports) -> dict[str, Any]:
    """What a new home's settings begin with: its ports, and new secrets."""
    return {
        "port_base": ports.base,
        "created_at": datetime.now(UTC).isoformat(),
        "kafka": {"bootstrap": f"127.0.0.1:{ports.kafka}", "user": ADMIN, "password": secrets.token_urlsafe(24)},
        "s3": {"endpoint": f"http://127.0.0.1:{ports.minio}", "secret_key": secrets.token_urlsafe(24)},
        "trino": {
            "port": ports.trino,
            "user": ADMIN,
            "password": secrets.token_urlsafe(24),
            "shared_secret": secrets.token_urlsafe(32),
        },
        "postgres_password": secrets.token_urlsafe(24),
        "supervisor_password": secrets.token_urlsafe(24),
        **{name: database(name, name, ports) for name in ("catalog", "ops")},
    }


def completed(written: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Settings with the sections that an earlier version did not know. Raises PreflightError for those of a
    ``directory`` whose Kafka was made without users: it cannot learn of any."""
    if "user" not in written["kafka"]:
        raise PreflightError(
            f"{directory} was made before the platform's parts had identities of their own, and its Kafka knows none. "
            "Make another one, and fill its log by replay"
        )
    ports = Ports(written["port_base"])
    more = {
        "erasure_secret": secrets.token_urlsafe(24),
        "airflow": airflow_secrets(ports),
        "shop": database("shop", "shop", ports),
        "cdc": cdc_settings(ports),
    }
    known = written.get("identities", {})
    identities = {name: known.get(name) or secrets.token_urlsafe(24) for name in IDENTITIES}
    settings = {**more, **written, "identities": identities}
    settings["airflow"].setdefault("people", {name: secrets.token_urlsafe(12) for name in ORCHESTRATING})
    settings["cdc"].setdefault("connect_password", secrets.token_urlsafe(24))
    return settings


def database(name: str, user: str, ports: Ports) -> dict[str, Any]:
    """Settings of a database, with a new secret for its user."""
    return {"name": name, "user": user, "port": ports.postgres, "password": secrets.token_urlsafe(24)}


def cdc_settings(ports: Ports) -> dict[str, Any]:
    """Section ``cdc`` of a home's settings, with new secrets."""
    return {"database": database("shop", "shop_cdc", ports), "connect_url": f"http://127.0.0.1:{ports.connect}"}


def airflow_secrets(ports: Ports) -> dict[str, Any]:
    """Section ``airflow`` of a home's settings, with new secrets."""
    return {
        "database": database("airflow", "airflow", ports),
        "password": secrets.token_urlsafe(12),
        "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "jwt_secret": secrets.token_urlsafe(48),
        "api_secret_key": secrets.token_urlsafe(24),
    }


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    scratch.rename(path)
