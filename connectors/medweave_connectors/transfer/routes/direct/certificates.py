"""Certificates for one copy."""

from __future__ import annotations

import secrets

from medweave_connectors.transfer.routes.direct.commands import Identity
from medweave_core.certificates import make_certificate


def make_identity() -> Identity:
    """Return a new key with a self-signed certificate."""
    certificate, key = make_certificate(f"medweave-{secrets.token_hex(8)}")
    return Identity(certificate.decode(), key.decode())
