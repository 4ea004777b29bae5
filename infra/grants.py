"""Making the servers agree with who may do what (``infra/identities.py``). Every call can be repeated: what is granted
already stays, and what is granted no longer is taken away from those who still have something there."""

import hashlib
import json
import time
from collections.abc import Iterable
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import urllib3
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from minio import MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import MinioAdminException
from psycopg import sql
from pydantic import SecretStr

from changelog.topics import TIMEOUT, admin
from infra.identities import ARCHIVERS, IDENTITIES, Identity, Objects
from runtime import ops
from runtime.errors import TransientError
from runtime.settings import Database, Settings

ITERATIONS = 4096
"""Of SCRAM; the secrets are generated, so no more of them make guessing harder."""

CATALOG_TABLES = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name varchar(255) NOT NULL, table_namespace varchar(255) NOT NULL, table_name varchar(255) NOT NULL,
    metadata_location varchar(1000), previous_metadata_location varchar(1000), iceberg_type varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name varchar(255) NOT NULL, namespace varchar(255) NOT NULL, property_key varchar(255) NOT NULL,
    property_value varchar(1000), PRIMARY KEY (catalog_name, namespace, property_key)
);
"""
"""The tables of Iceberg's JDBC catalog, as its schema V1 has them (org.apache.iceberg.jdbc.JdbcUtil): it makes them
where they are not, and may not."""


# --- Kafka

EXACT = ResourcePatternType.LITERAL
"""Of a name, or of ``*``, which is every name."""


def log(settings: Settings) -> None:
    """The log's users, and what they may do there; waits until the broker tells of it: its controller does so first.
    Raises TransientError if Kafka does not answer, or does not tell of it in time."""
    client = admin(settings)
    names = [name for name, identity in IDENTITIES.items() if identity.log]
    wanted = {binding for name in names for binding in acls(settings, name, IDENTITIES[name])}
    try:
        secrets: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                name,
                ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS),
                settings.identities[name].get_secret_value().encode(),
            )
            for name in names
        ]
        _all(client.alter_user_scram_credentials(secrets).values())
        there = _told(client, names)
        if missing := wanted - there:
            _all(client.create_acls(sorted(missing, key=str)).values())
        if gone := there - wanted:
            _all(client.delete_acls([_only(one) for one in gone]).values())
        deadline = time.monotonic() + TIMEOUT
        while _told(client, names) != wanted:
            if time.monotonic() > deadline:
                raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not tell of its new rules in time")
            time.sleep(0.05)
    except KafkaException as error:
        raise TransientError(f"Kafka at {settings.kafka.bootstrap} does not take its users: {error}") from error


def _told(client: AdminClient, names: list[str]) -> set[AclBinding]:
    """The rules that a broker knows of ours."""
    return {one for name in names for one in client.describe_acls(_of(name)).result(TIMEOUT)}


def acls(settings: Settings, name: str, identity: Identity) -> list[AclBinding]:
    """What Kafka is told of an identity."""
    meant = {ARCHIVERS: settings.archiver.group}
    grants = [(grant, meant.get(grant.name, grant.name)) for grant in identity.log]
    return [
        AclBinding(
            ResourceType[grant.kind],
            of.removesuffix("*") or "*",
            ResourcePatternType.PREFIXED if of.removesuffix("*") != of != "*" else EXACT,
            f"User:{name}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for grant, of in grants
        for operation in grant.operations
    ]


def _of(name: str) -> AclBindingFilter:
    anything: Any = None  # the client's types do not know that these may be left open
    return AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, f"User:{name}", anything,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip


def _only(one: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        one.restype, one.name, one.resource_pattern_type, one.principal, one.host, one.operation, one.permission_type
    )


def _all(futures: Iterable[Any]) -> None:
    for future in futures:
        future.result(TIMEOUT)


# --- the object store


def objects(settings: Settings) -> None:
    """The users of the object store and their policies. Raises TransientError if it does not take them."""
    url = urlsplit(settings.s3.endpoint)
    client = MinioAdmin(
        endpoint=url.netloc,
        credentials=StaticProvider(settings.s3.access_key, settings.s3.secret_key.get_secret_value()),
        secure=url.scheme == "https",
        http_client=urllib3.PoolManager(timeout=TIMEOUT, retries=False),
    )
    try:
        for name, identity in IDENTITIES.items():
            if identity.objects != Objects():
                client.policy_add(name, policy=policy(settings, identity.objects))
                client.user_add(name, settings.identities[name].get_secret_value())
                client.policy_set(name, user=name)
    except (MinioAdminException, urllib3.exceptions.HTTPError) as error:
        raise TransientError(f"the object store at {settings.s3.endpoint} does not take its users: {error}") from error


def policy(settings: Settings, allowed: Objects) -> dict[str, Any]:
    """An identity's policy, as S3 has it. Nobody makes further keys, which would outlive his own."""
    buckets = {"archive": settings.s3.archive_bucket, "lake": settings.s3.lake_bucket}

    def resources(prefixes: Iterable[str]) -> list[str]:
        split = (prefix.partition("/") for prefix in prefixes)
        return [f"arn:aws:s3:::{buckets[bucket]}/{beginning}*" for bucket, _, beginning in split]

    listed = {one.partition("/")[0] for one in (*allowed.gets, *allowed.puts, *allowed.deletes, *allowed.lists)}
    statements = [
        (["s3:ListBucket", "s3:GetBucketLocation"], [f"arn:aws:s3:::{buckets[one]}" for one in sorted(listed)]),
        (["s3:GetObject"], resources(allowed.gets)),
        (["s3:PutObject", "s3:AbortMultipartUpload"], resources(allowed.puts)),
        (["s3:DeleteObject"], resources(allowed.deletes)),
    ]
    return {
        "Version": "2012-10-17",
        "Statement": [
            *({"Effect": "Allow", "Action": actions, "Resource": which} for actions, which in statements if which),
            {"Effect": "Deny", "Action": ["admin:CreateServiceAccount", "admin:UpdateServiceAccount"]},
        ],
    }


# --- PostgreSQL


def role(connection: psycopg.Connection[Any], name: str, password: SecretStr, may: LiteralString = "LOGIN") -> None:
    """Make a role, or give one that is there this password. PostgreSQL is not told it, only what it checks it with:
    statements that fail are in its log."""
    there = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone()
    secret = password.get_secret_value().encode()
    verifier = connection.pgconn.encrypt_password(secret, name.encode(), b"scram-sha-256").decode()
    statement = sql.SQL(("ALTER ROLE {} " if there else "CREATE ROLE {} ") + may + " PASSWORD {}")
    connection.execute(statement.format(sql.Identifier(name), sql.Literal(verifier)))


def databases(settings: Settings, superuser: str) -> None:
    """The roles of those identities that are no owners, and what they may do in the databases. The owners' tables are
    made before. ``superuser``: connection string."""
    mine = {name: one for name, one in IDENTITIES.items() if one.ops or one.catalog is not None or one.shop}
    with psycopg.connect(superuser, autocommit=True) as connection:
        for name in mine:
            if not IDENTITIES[name].owner:
                role(connection, name, settings.identities[name])
            if IDENTITIES[name].shop:  # also where the shop has no tables yet: it is one of Trino's catalogs
                shops = sql.Identifier(settings.shop.name), sql.Identifier(name)
                connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(*shops))
    _operations(settings, {name: one.ops for name, one in mine.items() if one.ops})
    _catalog(settings, {name: one for name, one in mine.items() if one.catalog is not None})


def _operations(settings: Settings, granted: dict[str, Any]) -> None:
    wanted = [
        *(f'GRANT CONNECT ON DATABASE "{settings.ops.name}" TO "{name}"' for name in granted),
        *(
            f'GRANT {privileges} ON "{table}" TO "{name}"'
            for name, tables in granted.items()
            for table, privileges in tables.items()
        ),
        "ALTER TABLE services ENABLE ROW LEVEL SECURITY",
        "DROP POLICY IF EXISTS all_read ON services",
        "CREATE POLICY all_read ON services FOR SELECT USING (true)",
        "DROP POLICY IF EXISTS own_row ON services",
        "CREATE POLICY own_row ON services USING (name = current_user OR name LIKE current_user || '-%')",
    ]
    with ops.connect(settings) as connection:
        _agree(connection, settings.ops, wanted, granted)


def _catalog(settings: Settings, granted: dict[str, Identity]) -> None:
    both = ("iceberg_tables", "iceberg_namespace_properties")
    wanted = [f'GRANT CONNECT ON DATABASE "{settings.catalog.name}" TO "{name}"' for name in granted]
    for table in both:
        wanted += [
            *(f'GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO "{name}"' for name in granted),
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS all_read ON {table}",
            f"CREATE POLICY all_read ON {table} FOR SELECT USING (true)",
        ]
    for name, identity in granted.items():
        spaces = ", ".join(f"'{one}'" for one in identity.namespaces)
        for table, rows in zip(both, (identity.catalog, f"namespace IN ({spaces})"), strict=True):
            wanted += [
                f'DROP POLICY IF EXISTS "{name}_changes" ON {table}',
                f'CREATE POLICY "{name}_changes" ON {table} TO "{name}" USING ({rows})',
            ]
    with psycopg.connect(settings.catalog.dsn, autocommit=True) as connection:
        connection.execute(CATALOG_TABLES)
        _agree(connection, settings.catalog, wanted, granted)


def shop(settings: Settings) -> None:
    """What those may read in the shop's database who only read there; its tables are there."""
    granted = {name: one.shop for name, one in IDENTITIES.items() if one.shop}
    wanted = [f'GRANT SELECT ON "{table}" TO "{name}"' for name, tables in granted.items() for table in tables]
    with psycopg.connect(settings.shop.dsn, autocommit=True) as connection:
        _agree(connection, settings.shop, wanted, granted)


def _agree(connection: psycopg.Connection[Any], database: Database, wanted: list[str], names: Iterable[str]) -> None:
    """Take from ``names`` what they have of the tables, and grant what is ``wanted``, all at once. Nothing is done
    where the database says by its comment that this has been done, of these very tables: some of it waits until nobody
    uses a table."""
    said = "SELECT 1 FROM pg_database WHERE datname = %s AND shobj_description(oid, 'pg_database') = %s"
    with connection.transaction():
        tables = connection.execute(
            "SELECT oid::bigint FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1"
        ).fetchall()
        oids = [value for row in tables for value in (row.values() if isinstance(row, dict) else row)]
        digest = f"anabranch {hashlib.sha256(json.dumps([wanted, oids]).encode()).hexdigest()[:12]}"
        if connection.execute(said, (database.name, digest)).fetchone():
            return
        for name in names:
            connection.execute(
                sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}").format(sql.Identifier(name))
            )
        for statement in wanted:
            connection.execute(statement.encode())
        comment = sql.SQL("COMMENT ON DATABASE {} IS {}")
        connection.execute(comment.format(sql.Identifier(database.name), sql.Literal(digest)))
