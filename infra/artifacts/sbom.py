"""``python -m infra.artifacts.sbom``: what the product is made of, as CycloneDX 1.5 in JSON, on standard output.

Standard input is what ``uv export --format cyclonedx1.5`` says of the Python packages; here their licences are added,
as the installed packages state them, and the locked jars and the Go module, with checksums and licences. `make sbom`.
"""

import base64
import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any

from infra.artifacts.lock import LOCK_FILE, Artifact, go_module


def licence(package: Distribution) -> str:
    """The licence that a package states: an expression, or the classifiers, or its own words."""
    told: dict[str, Any] = package.metadata.json
    if expression := told.get("license_expression"):
        return str(expression)
    classifiers = [one.rpartition(" :: ")[2] for one in told.get("classifier", ()) if one.startswith("License ::")]
    return " / ".join(classifiers) or str(told.get("license") or "not stated").splitlines()[0]


def jar(artifact: Artifact) -> dict[str, Any]:
    """A component for a Maven artifact."""
    group, name, version, *_ = artifact.coordinate.split(":")
    return {
        "type": "library",
        "bom-ref": artifact.coordinate,
        "group": group,
        "name": name,
        "version": version,
        "purl": f"pkg:maven/{group}/{name}@{version}",
        "hashes": [{"alg": "SHA-256", "content": artifact.sha256}],
        "licenses": [{"license": {"name": artifact.licence}}],
    }


def complete(bom: dict[str, Any]) -> dict[str, Any]:
    """The document with everything in it, each component once."""
    licences = {one.metadata["Name"].lower().replace("_", "-"): licence(one) for one in distributions()}
    for component in bom["components"]:
        if known := licences.get(component["name"]):
            component["licenses"] = [{"license": {"name": known}}]
    jars = {one.coordinate: one for one in (Artifact(**entry) for entry in json.loads(LOCK_FILE.read_text())["maven"])}
    module = go_module()
    server = {
        "type": "application",
        "bom-ref": module.module,
        "name": module.module,
        "version": module.version,
        "purl": f"pkg:golang/{module.module}@{module.version}",
        "hashes": [{"alg": "SHA-256", "content": base64.b64decode(module.sum.removeprefix("h1:")).hex()}],
        "licenses": [{"license": {"name": module.licence}}],
    }
    bom["components"] += [*(jar(one) for one in jars.values()), server]
    return bom


if __name__ == "__main__":
    print(json.dumps(complete(json.load(sys.stdin)), indent=1))
