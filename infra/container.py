"""``python -m infra.container SERVICE``: become one of our services, in a container of our image.

The same services as on the local platform (``infra/services.py``). What they read beside the settings is rendered
here, when they start, below ``$ANABRANCH_HOME``: what the environment of a container overrides holds for it too.
"""

import os
import sys
from pathlib import Path

from infra import airflow, connect
from infra.artifacts.install import Programs
from infra.compose import ARTIFACTS
from infra.service import Service
from infra.services import environment, mapper, ours
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


def service(name: str, settings: Settings) -> Service:
    """A service by its name in docker-compose.yml. Writes the configuration that it reads, and no other's.

    Raises TerminalError for a name that is not known.
    """
    name = SAME_AS.get(name, name)
    if name == "connect":
        return connect.service(settings, programs())
    made = airflow.services(settings) if name in airflow.COMPONENTS else [*ours(settings), mapper(settings)]
    known = {one.name: one for one in made}
    if name not in known:
        raise TerminalError(
            f"there is no service {name!r}; there are connect, {', '.join([*known, *airflow.COMPONENTS])}"
        )
    return known[name]


def main(argv: list[str] | None = None) -> None:
    """Does not return. Raises what :func:`service` raises."""
    (name,) = sys.argv[1:] if argv is None else argv
    settings = Settings()
    found = service(name, settings)
    os.environ.update({**environment(settings, found), "ANABRANCH_SERVICE": name})
    os.execv(found.command[0], found.command)


if __name__ == "__main__":
    main()
