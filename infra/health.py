"""``python -m infra.health PART``: whether Airflow says that one of its parts is well. For health checks: it is run
every few seconds, so it imports next to nothing.

``PART``: metadatabase, scheduler, triggerer or dag_processor. ``$ANABRANCH_AIRFLOW_API``: where to ask, by default in
this container.
"""

import json
import os
import sys
from urllib.request import urlopen

SECONDS = 5


def main() -> int:
    """Exit status 0 if the part is healthy, else 1, with what Airflow says of it."""
    (part,) = sys.argv[1:]
    api = os.environ.get("ANABRANCH_AIRFLOW_API", "http://127.0.0.1:8080")
    with urlopen(f"{api}/api/v2/monitor/health", timeout=SECONDS) as answer:
        said = json.load(answer)[part]
    print(said)
    return 0 if said["status"] == "healthy" else 1


if __name__ == "__main__":
    sys.exit(main())
