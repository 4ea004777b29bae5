"""The one configuration object, read once at the edge of each process.

Sources, the later one wins: the defaults below, a file (it holds the generated secrets), environment variables
``ANABRANCH_<SECTION>__<FIELD>`` (for example ``ANABRANCH_KAFKA__BOOTSTRAP``). The file is ``$ANABRANCH_SETTINGS``, as a
container is given the one that ``anabranch init`` wrote, or else ``settings.json`` of the home, which ``anabranch up``
wrote with mode 0600.
"""

import os
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlencode

from psycopg.conninfo import make_conninfo
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from runtime.errors import ContractError

SCRAM = "SCRAM-SHA-512"
"""How clients of Kafka's say who they are: the password is on no wire."""

ENTITIES = ("guest", "session", "order", "event")


def home_directory() -> Path:
    """``$ANABRANCH_HOME``, by default ``.anabranch`` in the working directory; absolute."""
    return Path(os.environ.get("ANABRANCH_HOME") or ".anabranch").absolute()


def settings_file() -> Path:
    """``$ANABRANCH_SETTINGS``, by default ``settings.json`` in the home."""
    given = os.environ.get("ANABRANCH_SETTINGS")
    return Path(given).absolute() if given else home_directory() / "settings.json"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Kafka(_Section):
    """The log. ``partitions`` holds for every changelog topic and is a contract (see docs/how-it-works.md).

    With ``user`` clients say who they are, by SCRAM; ``protocol`` SASL_SSL, with the certificates in ``ca_file`` (PEM),
    is for a log that is reached over a network that others use too.
    """

    bootstrap: str = "127.0.0.1:29092"
    user: str = ""
    password: SecretStr = SecretStr("")
    protocol: Literal["SASL_PLAINTEXT", "SASL_SSL"] = "SASL_PLAINTEXT"
    ca_file: Path | None = None
    partitions: int = 4
    replication_factor: int = 1
    min_insync_replicas: int = 1
    retention_ms: int = 3 * 24 * 3600 * 1000

    def client(self) -> dict[str, str]:
        """What a client of librdkafka's begins with: where the log is, and who asks."""
        if not self.user:
            return {"bootstrap.servers": self.bootstrap}
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "sasl.mechanism": SCRAM,
            "sasl.username": self.user,
            "sasl.password": self.password.get_secret_value(),
            **({"ssl.ca.location": str(self.ca_file)} if self.ca_file else {}),
        }

    def java(self) -> dict[str, str]:
        """The same, as Java's clients name it."""
        if not self.user:
            return {"bootstrap.servers": self.bootstrap}
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": self.protocol,
            "sasl.mechanism": SCRAM,
            "sasl.jaas.config": jaas("scram.Scram", self.user, self.password),
            **({"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca_file)} if self.ca_file else {}),
        }

    def spark(self) -> dict[str, str]:
        """The same, as options of Spark's source."""
        return {f"kafka.{key}": value for key, value in self.java().items()}


def jaas(module: str, user: str, password: SecretStr, **more: str) -> str:
    """A login of Java's: ``module`` is scram.Scram or plain.Plain."""
    options = {"username": user, "password": password.get_secret_value(), **more}
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in options.items()}
    login = " ".join(f'{key}="{value}"' for key, value in escaped.items())
    return f"org.apache.kafka.common.security.{module}LoginModule required {login};"


class ObjectStore(_Section):
    """An S3 endpoint. ``archive_bucket`` holds the raw archive, ``lake_bucket`` the Iceberg tables."""

    endpoint: str = "http://127.0.0.1:29000"
    region: str = "us-east-1"
    access_key: str = "anabranch"
    secret_key: SecretStr = SecretStr("")
    archive_bucket: str = "archive"
    archive_prefix: str = "raw"
    lake_bucket: str = "lake"


class Database(_Section):
    """One PostgreSQL database and the role that owns it. ``ssl_mode``: as libpq has it, ``verify-full`` where it is
    reached over a network; ``ca_file`` (PEM): whom to believe then that one speaks with it."""

    host: str = "127.0.0.1"
    port: int = 29432
    name: str
    user: str
    password: SecretStr = SecretStr("")
    ssl_mode: Literal["prefer", "require", "verify-ca", "verify-full"] = "prefer"
    ca_file: Path | None = None

    @property
    def tls(self) -> dict[str, str]:
        """What a URL of the database says of TLS. The drivers' default is as ``prefer``."""
        asked = {} if self.ssl_mode == "prefer" else {"sslmode": self.ssl_mode}
        return asked | ({"sslrootcert": str(self.ca_file)} if self.ca_file else {})

    @property
    def jdbc_url(self) -> str:
        url = f"jdbc:postgresql://{self.host}:{self.port}/{self.name}"
        return f"{url}?{urlencode(self.tls)}" if self.tls else url

    @property
    def dsn(self) -> str:
        """Connection string for psycopg, password included."""
        return make_conninfo(
            host=self.host,
            port=self.port,
            dbname=self.name,
            user=self.user,
            password=self.password.get_secret_value(),
            **self.tls,
        )


class Trino(_Section):
    """The query engine, and further options for its JVM. It is reached over TLS: ``ca_file`` (PEM) is whom to believe
    that one speaks with it. ``shared_secret``: what its nodes tell each other by."""

    host: str = "127.0.0.1"
    port: int = 29080
    user: str = "anabranch"
    password: SecretStr = SecretStr("")
    ca_file: Path | None = None
    shared_secret: SecretStr = SecretStr("")
    java_options: str = ""


class Archiver(_Section):
    """When an open archive object is closed and stored: at this many payload bytes or at this age."""

    group: str = "archiver"
    max_bytes: int = 64 * 1024 * 1024
    max_age_seconds: float = 10.0


class Derive(_Section):
    """The service that writes the derived topics: a transaction takes what comes in ``trigger_seconds``, or
    ``max_records`` of the log."""

    trigger_seconds: float = 0.5
    max_records: int = 5_000


class Commands(_Section):
    """The service that answers commands. ``remember_days``: how long the id of a command is known, and has no second
    effect. ``succeeds``: services that write no more, whose guests and orders commands may go on with; those of any
    other are its own to change."""

    remember_days: int = Field(default=30, ge=1)
    succeeds: tuple[str, ...] = ()


def _power_of_four(number: int) -> int:
    if number not in (16, 64, 256, 1024):
        raise ValueError("has to be 16, 64, 256 or 1024")
    return number


class Speed(_Section):
    """The streaming application. ``horizon_seconds``: how far apart duplicates are still recognised. ``bucket_epochs``:
    epochs in one partition of the speed table, the unit in which old rows are deleted; holds for new tables.
    ``batch_services``: services that write in bulk; views that defer leave their changes to the batch layer. Holds for
    new generations. ``renew_pause_seconds``: within that time the application begins no second generation by itself for
    the same cause."""

    trigger_seconds: float = 2.0
    max_offsets_per_trigger: int = 100_000
    horizon_seconds: int = 3600
    batch_services: tuple[str, ...] = ()
    renew_pause_seconds: float = Field(default=1800, ge=0)
    bucket_epochs: Annotated[int, AfterValidator(_power_of_four)] = 256
    driver_memory: str = "1g"
    ui_port: int = 0
    """Port of Spark's user interface; 0: none."""


class Batch(_Section):
    """The batch jobs, and what Airflow holds them to.

    ``schedule``, ``maintenance_schedule``: cron expressions in UTC, or empty for none. A run that finds nothing to do
    for ``idle_seconds`` ends. A task that failed is tried again after ``retry_seconds``, then after longer. A run is
    not built if more than ``max_bad_share`` of the records since the last publication are bad and they are at least
    ``min_bad_records``. ``keep_publications``: to how many publications of each view one can go back;
    ``keep_runs_hours``: how long a run that nobody published can still be published.
    """

    driver_memory: str = "3g"
    schedule: str = "*/15 * * * *"
    maintenance_schedule: str = "7-59/15 * * * *"
    idle_seconds: float = 600.0
    retry_seconds: float = 30.0
    max_bad_share: float = 0.05
    min_bad_records: int = 20
    keep_publications: int = Field(default=10, ge=2)
    keep_runs_hours: float = Field(default=24, gt=0)


class Watch(_Section):
    """Limits of freshness, by component, and whom to tell. ``webhook_url`` may carry a token, so it is a secret."""

    schedule: str = "*/2 * * * *"
    max_behind_seconds: dict[Literal["cdc", "archiver", "derive", "speed", "ingest", "boundary"], float] = {
        "cdc": 60,
        "archiver": 120,
        "derive": 60,
        "speed": 60,
        "ingest": 3600,
        "boundary": 7200,
    }
    webhook_url: SecretStr = SecretStr("")
    keep_days: int = 7


class Airflow(_Section):
    """The orchestrator of profile ``full``: its metadata, and who logs in at its interface: ``user``, who may do
    everything, and ``people``.

    What it remembers of runs of more than ``keep_days`` ago is deleted by ``cleanup_schedule`` (cron, UTC, or empty).
    ``listen``, ``port``: of the API server; port 0 is the one of the home. ``url``: where people find it, and
    ``api_url``: where tasks do, if they are elsewhere.
    """

    listen: str = "127.0.0.1"
    port: int = 0
    url: str = ""
    api_url: str = ""

    cleanup_schedule: str = "17 4 * * *"
    keep_days: int = Field(default=30, ge=1)

    database: Database = Database(name="airflow", user="airflow")
    user: str = "admin"
    password: SecretStr = SecretStr("")
    people: dict[Literal["engineer"], SecretStr] = {}
    fernet_key: SecretStr = SecretStr("")
    jwt_secret: SecretStr = SecretStr("")
    api_secret_key: SecretStr = SecretStr("")


class Cdc(_Section):
    """Change data capture of the operational database ``shop`` (profile ``full``).

    ``database``: the same database, as the role that captures sees it. ``connect_url``: Kafka Connect's REST interface;
    ``connect_user``, ``connect_password``: who may ask there; ``connect_listen``: the interface on which it listens.
    ``refs``: what every ref of an entity of the shop begins with; no other service writes such refs.
    ``heartbeat_seconds``: how often the connector writes to the database, so that its slot moves on where the shop is
    quiet. ``max_slot_wal_mb``: how much WAL PostgreSQL keeps for a connector that does not read before it gives the
    slot up; ``watch`` tells of it from half of that on.
    """

    database: Database = Database(name="shop", user="shop_cdc")
    connect_url: str = "http://127.0.0.1:29083"
    connect_user: str = "anabranch"
    connect_password: SecretStr = SecretStr("")
    connect_listen: str = "127.0.0.1"
    slot: str = "anabranch"
    refs: str = "shop-"
    heartbeat_seconds: float = Field(default=10, gt=0)
    max_slot_wal_mb: int = Field(default=2048, ge=64)


class Drift(_Section):
    """Comparing the shop's database with the views. ``republish_at_most``: so many rows of an entity are mended one by
    one; more are major. ``rebuild``: whether what is major is proposed (an alert) or started by the DAG ``drift``."""

    schedule: str = "47 * * * *"
    republish_at_most: int = Field(default=1_000, ge=0)
    rebuild: Literal["propose", "start"] = "propose"


class Spark(_Section):
    """Where Spark runs, where its extra jars are (one directory, filled by ``anabranch up``), an archive of classes
    with which its drivers start faster (made by ``anabranch up`` too), further options for their JVMs, and on a cluster
    the memory of an executor, and the ``secret`` by which master, workers, drivers and executors know each other."""

    master: str = "local[2]"
    jars: Path = Path("jars")
    classes: Path | None = None
    java_options: str = ""
    executor_memory: str = "1g"
    secret: SecretStr = SecretStr("")


Profile = Literal["core", "full"]
"""What the local platform runs: ``full`` is ``core``, change data capture and Airflow."""


class _Environment(EnvSettingsSource):
    """The environment without what belongs to the home alone: ``ANABRANCH_PORT_BASE`` chooses the ports of a new home
    and of no other, and the profile is chosen by ``anabranch up``."""

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__call__().items() if name not in ("port_base", "profile")}


class Settings(BaseSettings):
    """Everything a process needs to find the others. See the module's text for where values come from."""

    model_config = SettingsConfigDict(
        env_prefix="ANABRANCH_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
        extra="forbid",
        hide_input_in_errors=True,  # it may be a secret
    )

    port_base: int = 29000
    created_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    """When this home was made: no schedule begins before."""

    profile: Profile = "core"
    postgres_password: SecretStr = SecretStr("")
    supervisor_password: SecretStr = SecretStr("")
    erasure_secret: SecretStr = SecretStr("")
    """Key of the hashes by which erased guests are told. Lost, nobody can tell any more who was erased."""

    identities: dict[str, SecretStr] = {}
    """The secret of each of the platform's identities (``infra/identities.py``), in the home's own settings alone."""

    kafka: Kafka = Kafka()
    s3: ObjectStore = ObjectStore()
    catalog: Database = Database(name="catalog", user="catalog")
    ops: Database = Database(name="ops", user="ops")
    trino: Trino = Trino()
    archiver: Archiver = Archiver()
    derive: Derive = Derive()
    commands: Commands = Commands()
    speed: Speed = Speed()
    batch: Batch = Batch()
    watch: Watch = Watch()
    drift: Drift = Drift()
    shop: Database = Database(name="shop", user="shop")
    cdc: Cdc = Cdc()
    spark: Spark = Spark()
    airflow: Airflow = Airflow()

    @model_validator(mode="after")
    def _one_writer_for_each_entity(self) -> Self:
        """What commands go on with cannot come later than what they make of it."""
        if both := set(self.commands.succeeds) & set(self.speed.batch_services):
            raise ValueError(
                f"commands.succeeds and speed.batch_services both name {', '.join(sorted(both))}: what commands change "
                "would be counted before it is there"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before file, so that a container or a test can override a single value."""
        path = settings_file()
        if os.environ.get("ANABRANCH_SETTINGS") and not path.exists():
            raise ContractError(
                f"ANABRANCH_SETTINGS names {path}, which is not there: anabranch up (or init) writes it"
            )
        file = JsonConfigSettingsSource(settings_cls, json_file=path)
        return init_settings, _Environment(settings_cls), file

    @cached_property
    def home(self) -> Path:
        """Directory of everything this installation keeps on local disk."""
        return home_directory()

    @property
    def topics(self) -> tuple[str, ...]:
        """The changelog topics, in a fixed order."""
        return tuple(topic_of(entity) for entity in ENTITIES)


def read(path: Path) -> Settings:
    """The settings that a file holds, whatever home and environment of this process say."""

    class FileAlone(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            *_others: PydanticBaseSettingsSource,
            **_more: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (JsonConfigSettingsSource(settings_cls, json_file=path),)

    return FileAlone()


def topic_of(entity: str) -> str:
    """``order`` → ``changelog.order``."""
    return f"changelog.{entity}"


def entity_of(topic: str) -> str:
    """``changelog.order`` → ``order``."""
    return topic.removeprefix("changelog.")
