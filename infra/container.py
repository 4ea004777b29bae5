"""``python -m infra.container SERVICE``: become one of our services, in a container of our image.

The same services as on the local platform (:func:`infra.services.ours`). What they read beside the settings is rendered
here, when they start, below ``$ANABRANCH_HOME``: what the environment of a container overrides holds for it too.
"""

import os
import sys
from pathlib import Path

from infra.artifacts.install import Programs
from infra.compose import ARTIFACTS
from infra.services import environment, ours
from runtime.errors import TerminalError
from runtime.settings import Settings

SAME_AS = {"archiver-2": "archiver"}
"""Services that there are two of."""


def programs() -> Programs:
    """Where our image has its jars. What other images have is nowhere."""
    nowhere = Path("/nonexistent")
    return Programs(
        spark_jars=ARTIFACTS / "spark",
        kafka_jars=nowhere,
        connect_jars=ARTIFACTS / "connect",
        connect_plugins=ARTIFACTS / "plugins",
        trino=nowhere,
        postgres=nowhere,
        minio=nowhere,
        java=Path("/usr/bin/java"),
    )


def main(argv: list[str] | None = None) -> None:
    """Does not return. Raises TerminalError for a service that the settings' profile does not have."""
    (name,) = sys.argv[1:] if argv is None else argv
    settings = Settings()
    services = {service.name: service for service in ours(settings, programs())}
    if SAME_AS.get(name, name) not in services:
        raise TerminalError(f"there is no service {name!r} in profile {settings.profile}: {', '.join(services)}")
    service = services[SAME_AS.get(name, name)]
    os.environ.update({**environment(settings, service), "ANABRANCH_SERVICE": name})
    os.execv(service.command[0], service.command)


if __name__ == "__main__":
    main()
