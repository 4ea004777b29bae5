"""Who the platform's parts are, and what each may do: in Kafka, in the object store, in PostgreSQL, in Trino.

Each layer is an identity of its own, with one secret that it has wherever it logs in, and with a settings file that
holds no other's. What is granted is data here; ``infra/grants.py`` makes the servers agree with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from changelog.sources.cdc.mapping import TABLES
from runtime.settings import Settings

ADMIN = "admin"
"""Who may do everything: it makes topics, buckets, roles and the others. The home's own settings are its."""

READ = ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
WRITE = ("WRITE", "DESCRIBE")

LOG, LATEST, PATCH, ALERTS = "changelog.*", "latest.*", "patch.*", "alert.*"
CAPTURED, CAPTURED_BAD, CONNECT = "cdc.shop", "cdc.bad", "connect.*"
COMMANDS, OUTCOMES = "command.*", "command.outcomes"
ASKED = tuple(f"command.{one}" for one in ("place-order", "change-order", "cancel-order", "update-guest"))

ARCHIVERS = "$archivers"
"""Stands for the group that archives: it is a setting, which Secor and our archiver share."""

LOOKING = ("anabranch-reader", "anabranch-identities", "anabranch-lookup")
"""Groups that consumers name who read by themselves: nothing is committed in them, but clients ask for them."""


@dataclass(frozen=True)
class Grant:
    """Operations on Kafka's resources of a kind; a name that ends in ``*`` stands for all that begin so."""

    kind: Literal["TOPIC", "GROUP", "TRANSACTIONAL_ID"]
    name: str
    operations: tuple[str, ...]


def reads(*topics: str) -> tuple[Grant, ...]:
    return tuple(Grant("TOPIC", topic, READ) for topic in topics)


def writes(*topics: str) -> tuple[Grant, ...]:
    return tuple(Grant("TOPIC", topic, WRITE) for topic in topics)


def commits(*groups: str) -> tuple[Grant, ...]:
    return tuple(Grant("GROUP", group, ("READ", "DESCRIBE")) for group in groups)


def asks(*groups: str) -> tuple[Grant, ...]:
    """May know what a group has committed, and not commit in its name."""
    return tuple(Grant("GROUP", group, ("DESCRIBE",)) for group in groups)


def transacts(*names: str) -> tuple[Grant, ...]:
    return tuple(Grant("TRANSACTIONAL_ID", name, WRITE) for name in names)


@dataclass(frozen=True)
class Objects:
    """What may be done in the object store: prefixes, ``bucket/beginning``, by action. ``archive`` and ``lake`` stand
    for the buckets. Who may do anything in a bucket may list it."""

    gets: tuple[str, ...] = ()
    puts: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """``log``, ``objects``: as above. ``ops``: table of the operations database → privileges; columns in brackets.
    ``catalog``: a condition on the rows of ``iceberg_tables`` that it may change; None: it does not know the catalog.
    ``namespaces``: those that it may make there.
    ``shop``: tables of the shop's database that it may read. ``owner``: it works as the owner of catalog and
    operations database. ``queries``: it logs in at Trino. ``keeps``: other secrets of the settings that are its own.
    """

    log: tuple[Grant, ...] = ()
    objects: Objects = Objects()
    ops: Mapping[str, str] = field(default_factory=dict)
    catalog: str | None = None
    namespaces: tuple[str, ...] = ()
    shop: tuple[str, ...] = ()
    owner: bool = False
    queries: bool = False
    keeps: tuple[str, ...] = ()


SHOWN = (
    "publications", "publication_views", "served", "archived", "dead_letter_replays", "erasing", "drift", "lag",
    "alerts", "comparisons", "runs", "generations", "services",
)  # fmt: skip
"""The tables of the operations database that views stand on, and that engineers look into."""

BEAT = {"services": "SELECT, INSERT, UPDATE"}
"""Its own row alone, by a policy."""

ERASED = {
    "erasures": "SELECT (erasure, digest, secret_check, names)",
    "generations": "SELECT",
    "served": "SELECT",
}
"""Which guests are erased, as hashes; and which of them what is served has taken in."""

PENDING = {"erasures": f"{ERASED['erasures'][:-1]}, ref)"}
"""With the refs of those whose records may still be in the columnar archive."""

IDENTITIES: dict[str, Identity] = {
    "producer": Identity(
        log=(*writes(LOG, *ASKED), *reads(OUTCOMES), *commits(*LOOKING)),
        ops=ERASED,
        keeps=("erasure_secret",),
    ),
    "archiver": Identity(
        log=(*reads(LOG), *commits(ARCHIVERS)),
        objects=Objects(gets=("archive/",), puts=("archive/",)),
        ops=BEAT | ERASED,
        keeps=("erasure_secret",),
    ),
    "archive-guard": Identity(objects=Objects(lists=("archive",)), ops=BEAT),
    "derive": Identity(
        log=(*reads(LOG), *reads(LATEST, PATCH), *writes(LATEST, PATCH), *commits("anabranch-derive", *LOOKING),
             *transacts("anabranch-derive")),
        objects=Objects(gets=("archive/",)),
        ops=BEAT | ERASED | {"erasures": f"{ERASED['erasures'][:-1]}, derived_at), UPDATE (derived_at)"},
        queries=True,
        keeps=("erasure_secret",),
    ),
    "commands": Identity(
        log=(*reads(LOG, LATEST, COMMANDS), *writes("changelog.guest", "changelog.order", "changelog.event", OUTCOMES),
             *commits("anabranch-commands", *LOOKING), *asks("anabranch-derive"), *transacts("anabranch-commands")),
        ops=BEAT | ERASED,
        keeps=("erasure_secret",),
    ),
    "speed": Identity(
        log=(*reads(LOG, ALERTS), *writes(ALERTS), *commits("anabranch-alerts", "spark-kafka-*", *LOOKING),
             *transacts("alerts-*")),
        objects=Objects(gets=("lake/warehouse/",), puts=("lake/warehouse/speed/",)),
        ops=BEAT | ERASED | PENDING
        | {"generations": "SELECT, INSERT, MAINTAIN", "archived": "SELECT", "runs": "SELECT"},
        catalog="table_namespace = 'speed'",
        namespaces=("speed",),
        keeps=("erasure_secret",),
    ),
    "cdc": Identity(
        log=(*reads(LOG, LATEST, CAPTURED, CAPTURED_BAD),
             *writes("changelog.guest", "changelog.session", "changelog.order", CAPTURED_BAD),
             *commits("anabranch-cdc", *LOOKING), *asks("anabranch-derive"), *transacts("anabranch-cdc")),
        ops=BEAT | ERASED,
        keeps=("erasure_secret", "cdc"),
    ),
    "connect": Identity(
        log=(*(Grant("TOPIC", CONNECT, (*READ, "WRITE", "CREATE")),), *writes(CAPTURED),
             *commits("anabranch-connect")),
        keeps=("cdc",),
    ),
    "trino": Identity(
        objects=Objects(gets=("lake/warehouse/",), puts=("lake/warehouse/*-*/metadata/",)),
        ops=dict.fromkeys(SHOWN, "SELECT"),
        catalog="iceberg_type = 'VIEW'",
        namespaces=("serving", "ops"),
        shop=tuple(TABLES),
    ),
    "batch": Identity(
        log=(
            *(Grant("TOPIC", one, (*READ, "WRITE", "CREATE", "DELETE", "ALTER_CONFIGS"))
              for one in (LOG, LATEST, PATCH, ALERTS, COMMANDS, "cdc.*", CONNECT)),
            *reads("*"),  # an erasure's proof looks into every topic that there is
            Grant("GROUP", "anabranch-*", ("READ", "DESCRIBE", "DELETE")), *commits("spark-kafka-*"),
            *asks(ARCHIVERS), *transacts("anabranch-*"),
        ),
        objects=Objects(
            gets=("archive/", "lake/"), puts=("archive/", "lake/"), deletes=("lake/",), lists=("archive", "lake")
        ),
        owner=True,
        queries=True,
        keeps=("erasure_secret", "cdc", "shop", "watch", "airflow", "spark"),
    ),
    "airflow-api": Identity(keeps=("airflow",)),
    "analyst": Identity(queries=True),
    "engineer": Identity(queries=True),
}  # fmt: skip
"""``batch``: what Airflow runs, and the command line of a container. ``airflow-api``: Airflow's interface, which alone
is reached from outside. ``producer``: for services that write to the changelog. ``analyst`` and ``engineer``: people
who query."""

PEOPLE = ("analyst", "engineer")
"""Those of them who are people."""

ORCHESTRATING = ("engineer",)
"""Who logs in at Airflow beside its administrator, with another password. Logs of tasks show rows: not analysts."""

CLOSED = ("cdc", "shop", "watch", "airflow", "spark", "postgres_password", "supervisor_password", "erasure_secret")
"""What of the settings only those who keep it may know the secrets of."""


def acting_as(settings: Settings, name: str) -> Settings:
    """The home's settings with the logins of an identity, and without those that it has not."""
    identity, secret, none = IDENTITIES[name], settings.identities[name], SecretStr("")

    def login(may: bool) -> dict[str, Any]:
        return {"user": name, "password": secret if may else none}

    objects = {"access_key": name, "secret_key": secret if identity.objects != Objects() else none}
    changed: dict[str, Any] = {
        "identities": {},
        "kafka": settings.kafka.model_copy(update=login(bool(identity.log))),
        "s3": settings.s3.model_copy(update=objects),
        "trino": settings.trino.model_copy(update={**login(identity.queries), "shared_secret": none}),
    }
    if not identity.owner:
        changed["ops"] = settings.ops.model_copy(update=login(bool(identity.ops)))
        changed["catalog"] = settings.catalog.model_copy(update=login(identity.catalog is not None))
    if identity.shop:
        changed["shop"] = settings.shop.model_copy(update=login(True))
    return settings.model_copy(update=changed)


def file_of(settings: Settings, name: str) -> str:
    """The settings file of an identity."""
    mine, keeps = acting_as(settings, name), IDENTITIES[name].keeps
    told = {
        field: _revealed(getattr(mine, field), hidden=field in CLOSED and field not in keeps)
        for field in Settings.model_fields
    }
    return json.dumps(told, indent=1) + "\n"


def _revealed(value: Any, hidden: bool) -> Any:
    """A value as JSON has it, secrets in clear, or ``hidden``: empty."""
    if isinstance(value, SecretStr):
        return "" if hidden else value.get_secret_value()
    if isinstance(value, BaseModel):
        return {name: _revealed(getattr(value, name), hidden) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _revealed(one, hidden) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_revealed(one, hidden) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value
