"""A real S3 server for tests: versitygw over a folder, by TLS with its own CA. An object is a file that a test may change."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from support.built_once import GO_ENVIRONMENT, alone

SOURCES = Path(__file__).parents[2] / "deployments" / "testbed" / "s3"
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "an-account", "AWS_SECRET_ACCESS_KEY": "its-secret-key"}
NAME = "between"
USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
BUILD_S, START_S = 900, 30


@dataclass(frozen=True)
class Gateway:
    """A running S3 server.

    Attributes:
        folder: of the bucket.
        ca: file of the certificate that vouches for it.
    """

    endpoint: str
    folder: Path
    ca: Path

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the bucket's settings for a site file."""
        return {"endpoint": self.endpoint, "bucket": NAME, "ca": str(self.ca), **more}

    def objects(self) -> list[Path]:
        """Return the files in the bucket, unfinished uploads too; folders may vanish during the walk, with their last object."""
        return sorted(Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names)


def program() -> Path:
    """Return the path of versitygw, built once for this user from the pinned sources.

    A machine without Go has no such tests, except in CI, where that is a failure.
    """
    digest = hashlib.sha256((SOURCES / "go.sum").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = cache / "medweave-tests" / f"versitygw-{digest}"
    with alone(file.with_suffix(".lock")):
        if not file.exists():
            _build(file)
    return file


def _build(file: Path) -> None:
    go = shutil.which("go", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/local/go/bin")
    if go is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Go here, which builds the S3 server (golang.org)")
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    words = [go, "build", "-mod=readonly", "-ldflags", "-s -w", "-o", aside, PACKAGE]
    environment = os.environ | GO_ENVIRONMENT | {"GOFLAGS": "-buildvcs=false"}
    subprocess.run(words, cwd=SOURCES, env=environment, check=True, timeout=BUILD_S)
    aside.rename(file)


@contextmanager
def gateway(folder: Path, *, root: Path | None = None) -> Iterator[Gateway]:
    """Yield the server, while the block runs.

    Args:
        root: where its buckets lie, if not in the folder.
    """
    binary, root = program(), root or folder / "buckets"
    (root / NAME).mkdir(parents=True)
    ca, certificate, key = _certificates(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [binary, "--port", f"127.0.0.1:{port}", "--cert", certificate, "--key", key, "--quiet", "posix", root]
    secrets = {"ROOT_ACCESS_KEY": ACCOUNT["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": ACCOUNT["AWS_SECRET_ACCESS_KEY"]}
    with (folder / "gateway.log").open("wb") as log:
        server = subprocess.Popen(words, env=os.environ | secrets, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(server, port, folder / "gateway.log")
        yield Gateway(f"https://127.0.0.1:{port}", root / NAME, ca)
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(log.read_text())


def _certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Return the files of the CA, and of the server's certificate and key."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("a CA of the test", "a gateway")]
    now = datetime.datetime.now(datetime.UTC)
    made = []
    for number in range(2):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(keys[number].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        )
        # Python 3.13 wants what RFC 5280 does.
        own, signer = (x509.SubjectKeyIdentifier.from_public_key(keys[n].public_key()) for n in (number, 0))
        builder = builder.add_extension(own, False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False
        )
        if number == 0:
            usage = dict.fromkeys(USES, False) | {"key_cert_sign": True, "crl_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(Encoding.PEM))
    made.append(keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files = tuple(folder / name for name in ("ca.pem", "gateway.pem", "gateway.key"))
    for file, text in zip(files, made, strict=True):
        file.write_bytes(text)
    return files[0], files[1], files[2]
