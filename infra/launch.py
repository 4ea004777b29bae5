"""``python -m infra.launch COMMAND …``: end what an earlier life of this service has left, then become the command.

For services that start processes of their own in process groups of their own. If such a service is killed, those live
on: Airflow's idle workers for ever, and a task with its Spark driver beside its own retry.
"""

import os
import sys

from infra.supervise import end_leftovers
from runtime.settings import Settings

PATIENCE_SECONDS = 3
"""Airflow's idle workers do not listen at all, and the service is down meanwhile."""


def main() -> None:
    """Does not return. The service is the one that ``$ANABRANCH_SERVICE`` names, as Supervisor sets it."""
    ended = end_leftovers(Settings(), os.environ["ANABRANCH_SERVICE"], PATIENCE_SECONDS)
    if ended:
        print(f"ended {ended} processes that an earlier life of this service had left", flush=True)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
