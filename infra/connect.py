"""Kafka Connect as a service: one worker, on the local platform on loopback, with Debezium's plugin.

Its configuration, offsets and states are in compacted topics (``connect.*``), which it makes itself. What is secret is
in a file of its own that the worker looks values up in, so that no topic and no REST answer holds it.
"""

from urllib.parse import urlsplit

from changelog.sources.cdc.connect import login, secrets_path
from infra.artifacts.install import Programs
from infra.configuration import CONSOLE_LOG, properties
from infra.home import write_private
from infra.service import Service
from runtime.settings import Settings

SECONDS_TO_STOP = 20

AUTH = "org.apache.kafka.connect.rest.basic.auth.extension"
"""What makes the REST interface ask for a login: who may make connectors may have them log in as the capturing role."""


def service(settings: Settings, programs: Programs) -> Service:
    """The worker. Writes its configuration, and what its health check has to tell curl; a second call writes the
    same."""
    config = settings.home / "config" / "connect"
    database = settings.cdc.database.password.get_secret_value()
    write_private(secrets_path(settings), properties({"password": database}))
    write_private(config / "worker.properties", properties(configuration(settings, programs)))
    write_private(
        config / "log4j2.properties",
        "rootLogger.level=INFO\nrootLogger.appenderRef.out.ref=out\n"
        + CONSOLE_LOG
        + "logger.clients.name=org.apache.kafka\nlogger.clients.level=WARN\n"
        "logger.jetty.name=org.eclipse.jetty\nlogger.jetty.level=WARN\n",
    )
    user, password = login(settings)
    write_private(config / "users.properties", properties({user: password}))
    write_private(
        config / "jaas.conf",
        f'KafkaConnect {{\n  {AUTH}.PropertyFileLoginModule required file="{config / "users.properties"}";\n}};\n',
    )
    write_private(config / "login", f'user = "{user}:{password}"\n')
    flags = [
        "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={config / 'log4j2.properties'}",
        f"-Djava.security.auth.login.config={config / 'jaas.conf'}",
    ]  # fmt: skip
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    command = [str(programs.java), *flags, "-cp", f"{programs.connect_jars}/*", main, str(config / "worker.properties")]
    return Service(
        "connect", command, url=settings.cdc.connect_url, stop_seconds=SECONDS_TO_STOP,
        login=(user, settings.cdc.connect_password),
    )  # fmt: skip


def configuration(settings: Settings, programs: Programs) -> dict[str, str]:
    """``worker.properties``."""
    replication, url = str(settings.kafka.replication_factor), urlsplit(settings.cdc.connect_url)
    login = {key: value for key, value in settings.kafka.java().items() if key != "bootstrap.servers"}
    return {
        **settings.kafka.java(),
        **{f"{client}.{key}": value for client in ("producer", "consumer", "admin") for key, value in login.items()},
        "group.id": "anabranch-connect",
        "listeners": f"http://{settings.cdc.connect_listen}:{url.port}",
        "rest.advertised.host.name": str(url.hostname),
        "rest.extension.classes": f"{AUTH}.BasicAuthSecurityRestExtension",
        "plugin.path": str(programs.connect_plugins),
        "plugin.discovery": "service_load",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "config.providers.file.param.allowed.paths": str(secrets_path(settings).parent),
        "config.storage.topic": "connect.configs",
        "config.storage.replication.factor": replication,
        "offset.storage.topic": "connect.offsets",
        "offset.storage.partitions": "1",
        "offset.storage.replication.factor": replication,
        "status.storage.topic": "connect.status",
        "status.storage.partitions": "1",
        "status.storage.replication.factor": replication,
        "offset.flush.interval.ms": "5000",  # what is captured again after a crash is known, but why much
        "topic.creation.enable": "false",
    }
