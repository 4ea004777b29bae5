"""The certificate of the query engine: made once for a home, signed by itself, and believed by whoever is given it."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

VALID = timedelta(days=825)
RENEWED_BEFORE = timedelta(days=90)
"""``up`` makes a new one where less than this is left."""


def is_good(path: Path, hosts: Sequence[str]) -> bool:
    """Whether a certificate is there, with its key beside it, is for these hosts, and lasts."""
    private = path.with_name("server.pem")
    if not path.exists() or not private.exists() or path.read_text() not in private.read_text():
        return False
    found = x509.load_pem_x509_certificate(path.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {str(name.value) for name in names}
    return set(hosts) <= known and found.not_valid_after_utc - datetime.now(UTC) > RENEWED_BEFORE


def make_certificate(hosts: Sequence[str]) -> tuple[str, str]:
    """A new certificate for hosts, names or addresses: (the certificate, the certificate with its key), as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "anabranch")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM).decode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return public, private.decode() + public


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
