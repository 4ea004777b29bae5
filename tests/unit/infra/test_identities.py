"""Who may do what: each identity has its own secret and no other's, and rights that it needs and no more."""

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from pydantic import SecretStr

from changelog.commands.schema import COMMANDS, OUTCOMES
from changelog.derived import derived_topics
from changelog.sources.cdc.mapping import TABLES
from changelog.sources.cdc.stream import TOPIC
from infra.configuration import trino_passwords, trino_rules
from infra.grants import acls, policy
from infra.identities import ARCHIVERS, CLOSED, IDENTITIES, PEOPLE, Identity, Objects, acting_as, file_of
from runtime import ops
from runtime.settings import Settings, read
from views.registry import all_views, derived_views, personal_columns

pytestmark = pytest.mark.unit

SECRETS = {name: SecretStr(f"of-{name}-alone") for name in IDENTITIES}


@pytest.fixture
def settings(home: Path) -> Settings:
    return Settings.model_validate(
        {
            "identities": SECRETS,
            "postgres_password": "of-admin-1",
            "supervisor_password": "of-admin-2",
            "erasure_secret": "of-erasure",
            "kafka": {"user": "admin", "password": "of-admin-3"},
            "s3": {"secret_key": "of-admin-4"},
            "trino": {"password": "of-admin-5", "shared_secret": "of-admin-6"},
            "catalog": {"name": "catalog", "user": "catalog", "password": "of-owner-1"},
            "ops": {"name": "ops", "user": "ops", "password": "of-owner-2"},
            "shop": {"name": "shop", "user": "shop", "password": "of-shop"},
            "cdc": {"database": {"name": "shop", "user": "shop_cdc", "password": "of-cdc"}},
            "airflow": {"password": "of-airflow-1", "fernet_key": "of-airflow-2", "people": {"engineer": "of-people"}},
            "watch": {"webhook_url": "https://of-watch"},
        }
    )


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_file_holds_its_own_secrets_and_no_others(settings: Settings, tmp_path: Path, name: str) -> None:
    identity, path = IDENTITIES[name], tmp_path / f"{name}.json"
    path.write_text(file_of(settings, name))
    text, its = path.read_text(), read(path)
    assert "of-admin" not in text
    others = {secret.get_secret_value() for other, secret in SECRETS.items() if other != name}
    assert [secret for secret in others if secret in text] == []
    kept = {"of-erasure": "erasure_secret", "of-cdc": "cdc", "of-shop": "shop", "of-airflow": "airflow",
            "of-people": "airflow", "of-watch": "watch"}  # fmt: skip
    assert {secret for secret in kept if secret in text} == {
        secret for secret, section in kept.items() if section in identity.keeps
    }
    assert ("of-owner" in text) == identity.owner
    assert its.model_dump(exclude=set(CLOSED)) == acting_as(settings, name).model_dump(exclude=set(CLOSED))


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_identity_logs_in_where_it_has_to_and_nowhere_else(settings: Settings, name: str) -> None:
    identity, its, secret = IDENTITIES[name], acting_as(settings, name), f"of-{name}-alone"
    assert (its.kafka.password.get_secret_value() == secret) == bool(identity.log)
    assert (its.s3.secret_key.get_secret_value() == secret) == (identity.objects != Objects())
    assert (its.trino.password.get_secret_value() == secret) == identity.queries
    assert (its.ops.password.get_secret_value() == secret) == (bool(identity.ops) and not identity.owner)
    assert (its.catalog.password.get_secret_value() == secret) == (identity.catalog is not None)


def may(identity: Identity, operation: str, topic: str) -> bool:
    return any(
        grant.kind == "TOPIC" and operation in grant.operations and fnmatchcase(topic, grant.name)
        for grant in identity.log
    )


def who(operation: str, topic: str) -> set[str]:
    return {name for name, identity in IDENTITIES.items() if may(identity, operation, topic)} - {"batch"}


def test_every_topic_is_written_by_those_who_make_it(settings: Settings) -> None:
    assert who("WRITE", "changelog.guest") == who("WRITE", "changelog.order") == {"producer", "commands", "cdc"}
    assert who("WRITE", "changelog.session") == {"producer", "cdc"}
    assert who("WRITE", "changelog.event") == {"producer", "commands"}
    for topic in derived_topics(settings):
        assert who("WRITE", topic) == {"derive"}
    for command in COMMANDS:
        assert who("WRITE", f"command.{command}") == {"producer"}
    assert who("WRITE", OUTCOMES) == {"commands"}
    assert who("WRITE", TOPIC) == {"connect"}
    assert who("WRITE", "alert.anything") == {"speed"}


def test_topics_are_made_by_the_operator_and_connect_makes_its_own_three() -> None:
    making = {name for name, one in IDENTITIES.items() for grant in one.log if "CREATE" in grant.operations}
    assert making == {"batch", "connect"}
    assert who("CREATE", "connect.offsets") == {"connect"}
    assert who("CREATE", "changelog.order") == set()
    assert {name for name, one in IDENTITIES.items() for grant in one.log if "DELETE" in grant.operations} == {"batch"}


def test_nobody_else_commits_in_the_name_of_a_group() -> None:
    for group in (ARCHIVERS, "anabranch-derive", "anabranch-commands", "anabranch-cdc"):
        committing = {
            name
            for name, identity in IDENTITIES.items()
            for grant in identity.log
            if grant.kind == "GROUP" and "READ" in grant.operations and fnmatchcase(group, grant.name)
        }
        assert committing - {"batch"} == {group.removeprefix("anabranch-").replace(ARCHIVERS, "archiver")}


def test_kafka_is_told_of_each_operation_by_itself(settings: Settings) -> None:
    bound = {str(one) for one in acls(settings, "speed", IDENTITIES["speed"])}
    granted = {(grant.kind, grant.name, one) for grant in IDENTITIES["speed"].log for one in grant.operations}
    assert len(bound) == len(granted)
    assert any("PREFIXED" in one and "changelog." in one and "AclOperation.READ" in one for one in bound)
    assert all("User:speed" in one for one in bound)


def allowed(settings: Settings, name: str, action: str, resource: str) -> bool:
    """What S3 would say: a policy of ours has no conditions, and of objects it denies none."""
    statements = [one for one in policy(settings, IDENTITIES[name].objects)["Statement"] if one["Effect"] == "Allow"]
    return any(
        action in one["Action"] and any(fnmatchcase(f"arn:aws:s3:::{resource}", which) for which in one["Resource"])
        for one in statements
    )


@pytest.mark.parametrize(
    ("name", "action", "resource", "expected"),
    [
        ("archiver", "s3:PutObject", "archive/raw/changelog.order/dt=2026-01-01/hr=00/1_0_0.deflate", True),
        ("archiver", "s3:DeleteObject", "archive/raw/changelog.order/dt=2026-01-01/hr=00/1_0_0.deflate", False),
        ("archiver", "s3:GetObject", "lake/warehouse/archive/order/data/1.parquet", False),
        ("archiver", "s3:ListBucket", "lake", False),
        ("archive-guard", "s3:ListBucket", "archive", True),
        ("archive-guard", "s3:GetObject", "archive/raw/changelog.order/x", False),
        ("derive", "s3:GetObject", "archive/raw/changelog.order/x", True),
        ("derive", "s3:PutObject", "archive/raw/changelog.order/x", False),
        ("speed", "s3:PutObject", "lake/warehouse/speed/main/data/1.parquet", True),
        ("speed", "s3:PutObject", "lake/warehouse/batch/revenue/data/1.parquet", False),
        ("speed", "s3:DeleteObject", "lake/warehouse/speed/main/data/1.parquet", False),
        ("speed", "s3:GetObject", "archive/raw/changelog.order/x", False),
        ("trino", "s3:GetObject", "lake/warehouse/batch/revenue/data/1.parquet", True),
        ("trino", "s3:GetObject", "lake/backups/1.zip", False),
        ("trino", "s3:PutObject", "lake/warehouse/serving/revenue-1/metadata/1.json", True),
        ("trino", "s3:PutObject", "lake/warehouse/batch/revenue/data/1.parquet", False),
        ("trino", "s3:PutObject", "lake/warehouse/archive/order/metadata/00001-a-b.metadata.json", False),
        ("trino", "s3:DeleteObject", "lake/warehouse/batch/revenue/data/1.parquet", False),
        ("trino", "s3:GetObject", "archive/raw/changelog.order/x", False),
        ("batch", "s3:DeleteObject", "lake/warehouse/batch/revenue/data/1.parquet", True),
        ("batch", "s3:DeleteObject", "archive/raw/changelog.order/x", False),
    ],
)
def test_objects_are_for_those_who_make_and_read_them(
    settings: Settings, name: str, action: str, resource: str, expected: bool
) -> None:
    assert allowed(settings, name, action, resource) == expected


def test_nobody_may_list_all_buckets_or_administer(settings: Settings) -> None:
    actions = {
        action
        for one in IDENTITIES.values()
        for statement in policy(settings, one.objects)["Statement"]
        for action in statement["Action"]
    }
    assert actions == {
        "s3:ListBucket", "s3:GetBucketLocation", "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload",
        "s3:DeleteObject", "admin:CreateServiceAccount", "admin:UpdateServiceAccount",
    }  # fmt: skip


def test_tables_that_are_granted_are_there() -> None:
    tables = {table for one in IDENTITIES.values() for table in one.ops}
    assert [table for table in tables if f" {table} " not in ops.SCHEMA] == []
    assert set(IDENTITIES["trino"].shop) == set(TABLES)
    assert "erasures" not in IDENTITIES["trino"].ops, "it names guests"


def test_what_says_who_a_guest_is_is_marked_wherever_it_is_read() -> None:
    names = {"first_name", "last_name", "email"}
    found = {view.name: {one.name for one in view.reads} & names for view in all_views()}
    found |= {view.name: {one.name for one in view.columns} & names for view in derived_views()}
    assert {name: set(columns) for name, columns in personal_columns().items()} == {
        name: columns for name, columns in found.items() if columns
    }
    assert personal_columns().keys() == {"guest", "guest_latest", "alerts"}


def test_analysts_read_what_is_served_and_not_who_it_is_about() -> None:
    tables = [rule for rule in trino_rules()["tables"] if "analyst" in str(rule.get("user"))]
    masked = {rule["table"]: {one["name"] for one in rule["columns"]} for rule in tables if "columns" in rule}
    assert masked == {name: set(columns) for name, columns in personal_columns().items()}
    assert tables.index(next(rule for rule in tables if "_states" in str(rule.get("table")))) > len(masked) - 1
    assert {rule["schema"] for rule in tables} == {"serving", "jdbc"}
    assert trino_rules()["tables"][-1] == {"privileges": []}


def test_the_query_engine_keeps_hashes_that_it_can_check(settings: Settings) -> None:
    lines = dict(line.split(":", 1) for line in trino_passwords(settings).splitlines())
    assert lines.keys() == {"admin", "batch", "derive", *PEOPLE}
    assert len({line.split(":")[1] for line in lines.values()}) == len(lines), "each has a salt of its own"
    assert "alone" not in json.dumps(lines)
    assert trino_passwords(settings) == trino_passwords(settings)
