"""``python -m infra.provision stores|capture|views``: what ``anabranch up`` does between the starts of services, for
containers, where Compose starts them. Each step is a container that ends, and each can be run again.

``restore`` is run by hand, with nothing up but the two stores: ``docker compose run --rm --no-deps stores restore``.
"""

import logging
import sys
import time

import psycopg
from confluent_kafka import KafkaException

from batch.backup import backup, backups
from batch.backup import restore as restore_databases
from changelog.sources.cdc import capture as capturing
from infra import airflow, grants, prepare
from infra.platform import guard
from runtime import ops
from runtime.errors import AnabranchError
from runtime.settings import Settings
from serving.publication import publish_initial

log = logging.getLogger("provision")

PATIENCE_SECONDS = 30
"""How long a step is tried again: one of three brokers may not know yet what another has taken."""

SILENT_MINUTES = 10
"""A service that has not spoken for so long when the platform comes up is not missed any more if it is not started."""


def stores(settings: Settings) -> None:
    """Databases and roles, buckets, topics; with profile full also the shop's tables and Airflow's metadata."""
    prepare.databases(settings)
    prepare.buckets(settings)
    guard(settings)
    prepare.topics(settings)
    grants.log(settings)
    with ops.connect(settings) as connection:
        connection.execute(
            "DELETE FROM services WHERE updated_at < now() - make_interval(mins => %s)", (SILENT_MINUTES,)
        )
    if settings.profile == "full":
        prepare.shop(settings)
        airflow.write_configuration(settings)
        airflow.migrate(settings)


def capture(settings: Settings) -> None:
    """The connector, its slot, and the request for the first snapshot."""
    capturing.ensure(settings, log.info)


def views(settings: Settings) -> None:
    """The first publication, and the first backup."""
    if publish_initial(settings).publication or not backups(settings):
        backup(settings)


def restore(settings: Settings) -> None:
    """The databases from the newest backup in the lake. Raises TerminalError if there is none."""
    prepare.databases(settings)
    log.info("restored: %s", restore_databases(settings))


STEPS = {"stores": stores, "capture": capture, "views": views, "restore": restore}


def main(argv: list[str] | None = None) -> int:
    """Run one step. Returns the exit status; the reason is in the log."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    (step,) = sys.argv[1:] if argv is None else argv
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            STEPS[step](Settings())
        except (AnabranchError, KafkaException, psycopg.OperationalError) as error:
            if time.monotonic() > deadline:
                log.error("%s: %s", step, error)
                return 1
            log.warning("%s: %s; once more", step, error)
            time.sleep(2)
        else:
            log.info("%s: done", step)
            return 0


if __name__ == "__main__":
    sys.exit(main())
