"""What identities try that they must not, as data: a test tries each of them, and the documentation names them.

An attempt raises :class:`RefusedError` where the server says no; anything else, an answer above all, is a hole.
"""

import json
import re
import sys
from collections.abc import Callable, Container
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import psycopg
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from minio import MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import MinioAdminException

from changelog.archive.store import s3_client
from infra.compose import HTTP_PORT
from infra.home import Ports
from infra.identities import acting_as
from runtime import trino
from runtime.errors import TerminalError, TransientError
from runtime.settings import Database, Settings

SECONDS = 15.0
NOBODY = "nobody"
"""Who does not say who he is, or says it with a wrong password."""


class RefusedError(Exception):
    """The server has said no."""


@dataclass(frozen=True)
class Attempt:
    """``who`` tries ``what`` in ``where``, by ``do``, which is given the settings of that identity."""

    who: str
    where: str
    what: str
    do: Callable[[Settings], object]


# --- Kafka

DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@contextmanager
def kafka_refuses() -> Any:
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in DENIED:
            raise RefusedError(str(error)) from error
        raise


def write(topic: str) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        errors: list[KafkaError | None] = []
        producer = Producer({**settings.kafka.client(), "log_level": 0, "message.timeout.ms": int(SECONDS * 1000)})
        producer.produce(topic, b"forged", b"key", on_delivery=lambda error, _message: errors.append(error))
        producer.flush(SECONDS + 5)
        (error,) = errors
        if error is not None:
            with kafka_refuses():
                raise KafkaException(error)
        return "written"

    return do


def read(topic: str, group: str) -> Callable[[Settings], object]:
    """In a group that the identity has, so that it is the topic that is refused."""

    def do(settings: Settings) -> object:
        consumer = Consumer({**settings.kafka.client(), "group.id": group, "log_level": 0})
        try:
            known = consumer.list_topics(topic, timeout=SECONDS).topics[topic].error
            if known and known.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise RefusedError(str(known))
            consumer.assign([TopicPartition(topic, 0, 0)])
            messages = consumer.consume(1, SECONDS)
            for message in messages:
                error = message.error()
                if error and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise RefusedError(str(error))
            return [message.error() or message.value() for message in messages]
        finally:
            consumer.close()

    return do


def commit(group: str) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        client = AdminClient({**settings.kafka.client(), "log_level": 0})
        forged = ConsumerGroupTopicPartitions(group, [TopicPartition("changelog.order", 0, 1)])
        with kafka_refuses():
            (answer,) = client.alter_consumer_group_offsets([forged])[group].result(SECONDS).topic_partitions
            if answer.error:
                raise KafkaException(answer.error)
            return answer

    return do


def fence(name: str) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        producer = Producer({**settings.kafka.client(), "transactional.id": name, "log_level": 0})
        with kafka_refuses():
            producer.init_transactions(SECONDS)
        return "fenced"

    return do


def make_topic(settings: Settings) -> object:
    client = AdminClient({**settings.kafka.client(), "log_level": 0})  # has to live as long as its futures
    made = client.create_topics([NewTopic("changelog.more", 1, 1)])
    with kafka_refuses():
        return made["changelog.more"].result(SECONDS)


def delete_topic(settings: Settings) -> object:
    client = AdminClient({**settings.kafka.client(), "log_level": 0})
    deleted = client.delete_topics(["changelog.order"])
    with kafka_refuses():
        return deleted["changelog.order"].result(SECONDS)


def make_topic_by_accident(settings: Settings) -> object:
    """By writing to it, as somebody who may."""
    producer = Producer({**settings.kafka.client(), "log_level": 0, "message.timeout.ms": 5000})
    errors: list[KafkaError | None] = []
    producer.produce("changelog.oder", b"x", on_delivery=lambda error, _message: errors.append(error))
    producer.flush(SECONDS)
    there = AdminClient({**settings.kafka.client(), "log_level": 0}).list_topics(timeout=SECONDS).topics
    if all(errors) and "changelog.oder" not in there:
        raise RefusedError(str(errors))
    return errors


def log_in(change: dict[str, str]) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        said: list[KafkaError] = []
        config: dict[str, Any] = {**settings.kafka.client(), **change, "log_level": 0, "error_cb": said.append}
        if "security.protocol" in change:
            config = {key: value for key, value in config.items() if not key.startswith("sasl.")}
        client = AdminClient(config)
        try:
            return client.list_topics(timeout=SECONDS / 3)
        except KafkaException as error:
            AdminClient({**settings.kafka.client(), "log_level": 0}).list_topics(timeout=SECONDS)  # it is there
            raise RefusedError(f"{error}; {said}") from error

    return do


# --- the object store


def objects(call: str, **arguments: str) -> Callable[[Settings], object]:
    return lambda settings: asked(s3_client(settings.s3), call, arguments)


def anonymously(call: str, **arguments: str) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
        client = boto3.client("s3", endpoint_url=settings.s3.endpoint, region_name=settings.s3.region, config=config)
        return asked(client, call, arguments)

    return do


def asked(client: Any, call: str, arguments: dict[str, str]) -> Any:
    try:
        return getattr(client, call)(**arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] == "AccessDenied":
            raise RefusedError(str(error)) from error
        raise


def all_buckets(settings: Settings) -> object:
    """MinIO answers with those that one may list: not both."""
    names = {bucket["Name"] for bucket in asked(s3_client(settings.s3), "list_buckets", {})["Buckets"]}
    if not {settings.s3.archive_bucket, settings.s3.lake_bucket} <= names:
        raise RefusedError(f"only {names} are told of")
    return names


def own_key(settings: Settings) -> object:
    """One that would outlive the secret of its identity."""
    keys = StaticProvider(settings.s3.access_key, settings.s3.secret_key.get_secret_value())
    client = MinioAdmin(endpoint=urlsplit(settings.s3.endpoint).netloc, credentials=keys, secure=False)
    try:
        return client.add_service_account(policy={"Version": "2012-10-17", "Statement": []})
    except MinioAdminException as error:
        if "AccessDenied" in str(error):
            raise RefusedError(str(error)) from error
        raise


# --- PostgreSQL


def sql(of: Callable[[Settings], Database], statement: str) -> Callable[[Settings], object]:
    """A statement of which the right is asked for before rows are looked at; a login counts as refused where PostgreSQL
    says so."""

    def do(settings: Settings) -> object:
        try:
            with psycopg.connect(of(settings).dsn, connect_timeout=10) as connection:
                done = connection.execute(statement.encode())
                connection.rollback()
                return done.statusmessage
        except psycopg.errors.InsufficientPrivilege as error:
            raise RefusedError(str(error)) from error
        except psycopg.OperationalError as error:
            if "permission denied for database" in str(error) or "password authentication failed" in str(error):
                raise RefusedError(str(error)) from error
            raise

    return do


def row(of: Callable[[Settings], Database], table: str, change: str, where: str) -> Callable[[Settings], object]:
    """A change of rows that are there, and that a policy guards."""

    def do(settings: Settings) -> object:
        with psycopg.connect(of(settings).dsn, connect_timeout=10) as connection:
            (there,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}".encode()).fetchone() or (0,)
            assert there > 0, "nothing to change"
            try:
                changed = connection.execute(f"UPDATE {table} SET {change} WHERE {where}".encode()).rowcount
            except psycopg.errors.InsufficientPrivilege as error:
                raise RefusedError(str(error)) from error
            connection.rollback()
            if changed == 0:
                raise RefusedError(f"none of {there} rows may be changed")
            return f"{changed} rows changed"

    return do


def copy_all(settings: Settings) -> object:
    """By physical replication, as whoever captures the shop may replicate."""
    try:
        with psycopg.connect(f"{settings.cdc.database.dsn} replication=true", connect_timeout=10) as connection:
            return connection.info.server_version
    except psycopg.OperationalError as error:
        if "no pg_hba.conf entry for replication connection" in str(error):
            raise RefusedError(str(error)) from error
        raise


def as_role(of: Callable[[Settings], Database], database: str) -> Callable[[Settings], Database]:
    return lambda settings: of(settings).model_copy(update={"name": database})


def ops(settings: Settings) -> Database:
    return settings.ops


def catalog(settings: Settings) -> Database:
    return settings.catalog


def as_superuser(settings: Settings) -> Database:
    return settings.ops.model_copy(update={"user": "postgres", "password": type(settings.ops.password)("guessed")})


# --- Trino


def query(statement: str) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        try:
            return trino.execute(trino.connect(settings), statement)
        except TerminalError as error:
            if "PERMISSION_DENIED" in str(error) or "Access Denied" in str(error):
                raise RefusedError(str(error)) from error
            raise
        except TransientError as error:
            if re.search("error 401|Access Denied|permission denied for database", str(error)):
                raise RefusedError(str(error)) from error
            raise

    return do


def as_user(user: str, password: str) -> Callable[[Settings], object]:
    def do(settings: Settings) -> object:
        login = {"user": user, "password": type(settings.trino.password)(password)}
        return query("SELECT 1")(settings.model_copy(update={"trino": settings.trino.model_copy(update=login)}))

    return do


def plainly(settings: Settings) -> object:
    """Past TLS, at the port where nodes speak with each other."""
    host = settings.trino.host
    port = HTTP_PORT if host == "trino" else Ports(settings.port_base).trino_inside
    answer = httpx.post(
        f"http://{host}:{port}/v1/statement", content="SELECT 1", headers={"X-Trino-User": "admin"}, timeout=SECONDS
    )
    if answer.status_code in (401, 403):
        raise RefusedError(answer.text)
    return answer.text


def supervisor(settings: Settings) -> object:
    answer = httpx.get(f"http://127.0.0.1:{Ports(settings.port_base).supervisor}/", timeout=SECONDS)
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise RefusedError(answer.text)
    return answer.text


def connector(login: tuple[str, str] | None) -> Callable[[Settings], object]:
    """One that would read a file of the worker."""

    def do(settings: Settings) -> object:
        config = {"connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "name": "forged"}
        asked = httpx.put(
            f"{settings.cdc.connect_url}/connectors/forged/config", json=config, auth=login, timeout=SECONDS
        )
        if asked.status_code == httpx.codes.UNAUTHORIZED:
            raise RefusedError(asked.text)
        return asked.text

    return do


RAW = {"Bucket": "archive", "Key": "raw/changelog.order/_topic-id"}
LAKE = {"Bucket": "lake", "Key": "warehouse/batch/forged/data/1.parquet"}
STATE = "serving.guest_latest_states"
ELSEWHERE = "metadata_location = 's3://x'"
PUBLISHED = (
    "INSERT INTO publications (pipeline, kind, generation, state, code_version) VALUES ('main', 'x', 1, 'finished', '')"
)

ATTEMPTS = (
    Attempt(NOBODY, "Kafka", "asks without logging in", log_in({"security.protocol": "PLAINTEXT"})),
    Attempt(
        NOBODY,
        "Kafka",
        "logs in as admin with a wrong password",
        log_in({"sasl.username": "admin", "sasl.password": "guessed"}),
    ),
    Attempt("producer", "Kafka", "reads the changelog", read("changelog.guest", "anabranch-reader")),
    Attempt("producer", "Kafka", "writes a derived topic", write("latest.guest")),
    Attempt("producer", "Kafka", "writes the outcome of a command", write("command.outcomes")),
    Attempt("producer", "Kafka", "makes a topic", make_topic),
    Attempt("archiver", "Kafka", "writes the changelog", write("changelog.order")),
    Attempt("archiver", "Kafka", "reads the commands", read("command.place-order", "archiver")),
    Attempt("speed", "Kafka", "writes the changelog", write("changelog.order")),
    Attempt("speed", "Kafka", "commits for the archiver", commit("archiver")),
    Attempt("speed", "Kafka", "deletes a topic", delete_topic),
    Attempt("derive", "Kafka", "writes the changelog", write("changelog.order")),
    Attempt("commands", "Kafka", "writes sessions", write("changelog.session")),
    Attempt("cdc", "Kafka", "writes events", write("changelog.event")),
    Attempt("commands", "Kafka", "commits for derive", commit("anabranch-derive")),
    Attempt("cdc", "Kafka", "ends derive's transactions", fence("anabranch-derive")),
    Attempt("connect", "Kafka", "reads the changelog", read("changelog.guest", "anabranch-connect")),
    Attempt("connect", "Kafka", "writes the changelog", write("changelog.guest")),
    Attempt("batch", "Kafka", "makes a topic by a slip of the pen", make_topic_by_accident),
    Attempt(NOBODY, "object store", "reads an object", anonymously("get_object", **RAW)),
    Attempt(NOBODY, "object store", "lists a bucket", anonymously("list_objects_v2", Bucket="lake")),
    Attempt("archiver", "object store", "deletes a raw object", objects("delete_object", **RAW)),
    Attempt("archiver", "object store", "lists the lake", objects("list_objects_v2", Bucket="lake")),
    Attempt("archiver", "object store", "reads a table's file", objects("get_object", **LAKE)),
    Attempt("archiver", "object store", "asks for all buckets", all_buckets),
    Attempt("archiver", "object store", "makes itself another key", own_key),
    Attempt("archive-guard", "object store", "reads a raw object", objects("get_object", **RAW)),
    Attempt("derive", "object store", "puts a raw object", objects("put_object", **RAW, Body="forged")),
    Attempt("speed", "object store", "puts a file of a batch table", objects("put_object", **LAKE, Body="forged")),
    Attempt("speed", "object store", "deletes a file of the lake", objects("delete_object", **LAKE)),
    Attempt("speed", "object store", "reads a raw object", objects("get_object", **RAW)),
    Attempt("trino", "object store", "puts a data file", objects("put_object", **LAKE, Body="forged")),
    Attempt(
        "trino",
        "object store",
        "replaces a table's metadata",
        objects("put_object", Bucket="lake", Key="warehouse/archive/order/metadata/00001-a.metadata.json", Body="{}"),
    ),
    Attempt("trino", "object store", "deletes a data file", objects("delete_object", **LAKE)),
    Attempt("trino", "object store", "reads a raw object", objects("get_object", **RAW)),
    Attempt(
        "trino",
        "object store",
        "reads a backup of the databases",
        objects("get_object", Bucket="lake", Key="backups/any.zip"),
    ),
    Attempt("batch", "object store", "deletes a raw object", objects("delete_object", **RAW)),
    Attempt(NOBODY, "PostgreSQL", "is the superuser with a wrong password", sql(as_superuser, "SELECT 1")),
    Attempt("archiver", "PostgreSQL", "looks into the catalog", sql(as_role(ops, "catalog"), "SELECT 1")),
    Attempt("archiver", "PostgreSQL", "looks into the shop", sql(as_role(ops, "shop"), "SELECT 1")),
    Attempt(
        "archiver",
        "PostgreSQL",
        "speaks for the speed layer",
        row(ops, "services", "state = 'running'", "name = 'speed'"),
    ),
    Attempt(
        "archiver",
        "PostgreSQL",
        "says that something is archived",
        sql(ops, "INSERT INTO archived VALUES ('changelog.order', 0, 1, now())"),
    ),
    Attempt("speed", "PostgreSQL", "publishes", sql(ops, "UPDATE publications SET state = 'finished'")),
    Attempt("speed", "PostgreSQL", "reads who is being erased", sql(ops, "SELECT identifying FROM erasures")),
    Attempt(
        "speed",
        "PostgreSQL",
        "points a batch table elsewhere",
        row(catalog, "iceberg_tables", ELSEWHERE, "table_namespace = 'batch'"),
    ),
    Attempt("derive", "PostgreSQL", "takes an erasure back", sql(ops, "DELETE FROM erasures")),
    Attempt("trino", "PostgreSQL", "publishes", sql(ops, PUBLISHED)),
    Attempt("trino", "PostgreSQL", "reads who is being erased", sql(ops, "SELECT * FROM erasures")),
    Attempt(
        "trino",
        "PostgreSQL",
        "points a table elsewhere",
        row(catalog, "iceberg_tables", ELSEWHERE, "table_namespace = 'speed'"),
    ),
    Attempt("cdc", "PostgreSQL", "copies all databases", copy_all),
    Attempt(NOBODY, "Trino", "asks past TLS", plainly),
    Attempt(NOBODY, "Trino", "is admin with a wrong password", as_user("admin", "guessed")),
    Attempt(NOBODY, "Trino", "is somebody who is not there", as_user("somebody", "guessed")),
    Attempt("analyst", "Trino", "reads the batch layer", query("SELECT * FROM lake.batch.revenue")),
    Attempt("analyst", "Trino", "reads the speed layer", query("SELECT * FROM lake.speed.main")),
    Attempt("analyst", "Trino", "reads the archive", query("SELECT * FROM lake.archive.guest")),
    Attempt(
        "analyst",
        "Trino",
        "reads names in a table's statistics",
        query('SELECT * FROM lake.batch."guest_latest$files"'),
    ),
    Attempt("analyst", "Trino", "reads partial states", query(f"SELECT * FROM lake.{STATE}")),
    Attempt("analyst", "Trino", "reads the dead letters", query("SELECT * FROM lake.ops.bad_records")),
    Attempt("analyst", "Trino", "reads the operations database", query("SELECT * FROM ops.public.runs")),
    Attempt("analyst", "Trino", "reads the shop", query("SELECT * FROM shop.public.customers")),
    Attempt("analyst", "Trino", "reads what others ask", query("SELECT * FROM system.runtime.queries")),
    Attempt(
        "analyst", "Trino", "replaces a view", query("CREATE OR REPLACE VIEW lake.serving.revenue AS SELECT 1 AS a")
    ),
    Attempt("analyst", "Trino", "makes a table", query("CREATE TABLE lake.serving.mine AS SELECT 1 AS a")),
    Attempt(
        "analyst",
        "Trino",
        "asks the shop's database directly",
        query("SELECT * FROM TABLE(shop.system.query(query => 'SELECT 1'))"),
    ),
    Attempt("analyst", "Trino", "is somebody else", query("SET SESSION AUTHORIZATION admin")),
    Attempt("engineer", "Trino", "drops a view", query("DROP VIEW lake.serving.revenue")),
    Attempt("engineer", "Trino", "drops a table", query('DROP TABLE lake.archive."order"')),
    Attempt("engineer", "Trino", "deletes rows", query('DELETE FROM lake.archive."order"')),
    Attempt(
        "engineer",
        "Trino",
        "changes the operations database",
        query("INSERT INTO ops.public.lag SELECT * FROM ops.public.lag"),
    ),
    Attempt(
        "engineer", "Trino", "runs SQL in PostgreSQL", query("CALL ops.system.execute('DELETE FROM publications')")
    ),
    Attempt(
        "engineer",
        "Trino",
        "asks the operations database directly",
        query("SELECT * FROM TABLE(ops.system.query(query => 'SELECT 1'))"),
    ),
    Attempt("derive", "Trino", "reads the views", query("SELECT * FROM lake.serving.guest_latest")),
    Attempt(NOBODY, "Supervisor", "asks without a password", supervisor),
    Attempt(NOBODY, "Kafka Connect", "makes a connector without a password", connector(None)),
    Attempt(NOBODY, "Kafka Connect", "makes a connector with a wrong password", connector(("anabranch", "guessed"))),
)


def settings_for(attempt: Attempt, settings: Settings) -> Settings:
    """Those of the one who tries; of nobody, the administrator's, of which the attempt takes what it changes."""
    return settings if attempt.who == NOBODY else acting_as(settings, attempt.who)


def holes(settings: Settings, where: Container[str]) -> list[str]:
    """Try everything but what is tried ``where``: what was not refused, and what came of it."""
    found = []
    for attempt in ATTEMPTS:
        if attempt.where not in where:
            try:
                answer = attempt.do(settings_for(attempt, settings))
            except RefusedError:
                continue
            except Exception as error:  # the server has not said no
                answer = error
            found.append(f"{attempt.who}, {attempt.where}, {attempt.what}: {answer!r}")
    return found


def table() -> str:
    """The attempts as a table in Markdown."""
    rows = [f"| `{one.who}` | {one.where} | {one.what} |" for one in ATTEMPTS]
    return "\n".join(["| who | where | tries, and is refused |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":  # in a container, where the names of servers are known
    print(json.dumps(holes(Settings(), sys.argv[1:])))
