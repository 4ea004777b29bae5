"""The guard beside Secor: ``python -m changelog.archive.guard``

Secor stores empty objects and commits their offsets if every write of a record fails (a codec that lacks its native
library does that): the log is lost to the archive and nothing says so. So somebody else looks. Ingest treats an empty
object as an alarm too; this one sees it within a minute, and before Kafka lets go of what is missing.
"""

import logging
import sys
from datetime import UTC, datetime, timedelta
from threading import Event

from botocore.exceptions import BotoCoreError, ClientError

from changelog.archive.store import ArchiveObject, ArchiveStore
from runtime.heartbeat import Heartbeat
from runtime.service import serve
from runtime.settings import Settings

log = logging.getLogger("archive-guard")

LOOK_SECONDS = 15.0
DAYS = 2
"""Objects of today and the days before, so many in all, are looked at: those of which Kafka has the records."""


def empty_objects(store: ArchiveStore, topics: tuple[str, ...], now: datetime) -> list[ArchiveObject]:
    """The archive objects of the last days that hold nothing."""
    days = [f"{now - timedelta(days=number):%Y-%m-%d}" for number in range(DAYS)]
    return [found for topic in topics for day in days for found in store.list_objects(topic, day) if not found.size]


def run(settings: Settings, heartbeat: Heartbeat, stopping: Event) -> None:
    """Look again and again until it is time to stop; with an empty object its state is failed, and the object named."""
    logging.getLogger("botocore").setLevel(logging.WARNING)
    store = ArchiveStore(settings.s3)
    while True:
        try:
            empty = empty_objects(store, settings.topics, datetime.now(UTC))
        except (BotoCoreError, ClientError) as error:
            log.warning("the object store does not answer: %s", error)
        else:
            if empty:
                message = (
                    f"{len(empty)} archive objects are empty, for example {empty[0].key}: the log is being lost. "
                    "Stop Secor, look at its codec, move the objects away and start again from before them"
                )
                log.error("%s", message)
                heartbeat.beat("failed", {"error": message})
            else:
                heartbeat.beat("running", {"empty": 0})
        if stopping.wait(LOOK_SECONDS):
            return


if __name__ == "__main__":
    sys.exit(serve("archive-guard", run))
