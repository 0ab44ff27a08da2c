"""Receivers of notifications: a webhook and a mail server, in threads of the test."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Webhook:
    """A webhook. Attributes: `came`: the received bodies; `answers`: status codes to return in turn, then 200."""

    url: str = ""
    came: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.came]


@contextmanager
def webhook(*answers: int) -> Iterator[Webhook]:
    """Yield a webhook on a free port, while the block runs."""
    made = Webhook(answers=list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.came.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(made.answers.pop(0) if made.answers else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}/hooks/T0KEN-of-the-address"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class MailServer:
    """A mail server. Attributes: `mails`: text of each received mail; `authority`: file of its certificate."""

    port: int
    mails: list[str]
    authority: Path


class _Box:
    def __init__(self) -> None:
        self.mails: list[str] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        content = envelope.content
        assert isinstance(content, bytes)
        self.mails.append(content.decode())
        return "250 OK"


@contextmanager
def mail_server(folder: Path, *, user: str, password: str) -> Iterator[MailServer]:
    """Yield a mail server that takes mail over STARTTLS, from clients that log in."""
    certificate, key = _certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def check(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
        is_right = isinstance(data, LoginPassword) and data == LoginPassword(user.encode(), password.encode())
        return AuthResult(success=is_right, handled=False)

    box = _Box()
    controller = Controller(
        box, hostname="127.0.0.1", port=_free_port(), tls_context=context, require_starttls=True, auth_required=True,
        authenticator=check,
    )  # fmt: skip
    controller.start()
    try:
        yield MailServer(port=controller.port, mails=box.mails, authority=certificate)
    finally:
        controller.stop()


def _free_port() -> int:
    from support.orthanc import free_port

    return free_port()


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return files
