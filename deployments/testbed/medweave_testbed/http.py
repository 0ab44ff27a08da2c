"""Asks the cluster's programs how they are, over TLS with the cluster's own authority."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path


def answer(
    url: str, *, authority: Path | None = None, client: tuple[Path, Path] | None = None, timeout_s: float = 3
) -> tuple[int, str]:
    """(HTTP status, body) of a GET; (0, the reason) without an answer.

    Args:
        authority: certificate of whom to trust; None for plain HTTP.
        client: our certificate and key.
    """
    context = None
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=str(authority))
            if client is not None:
                context.load_cert_chain(*map(str, client))
        except OSError as problem:
            return 0, f"the certificates cannot be read ({problem.strerror or problem})"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=context) as response:
            return response.status, response.read().decode(errors="replace")
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode(errors="replace")
    except (OSError, urllib.error.URLError) as problem:
        return 0, f"{url} does not answer ({getattr(problem, 'reason', problem)})"


def trouble(
    url: str, *, authority: Path | None = None, client: tuple[Path, Path] | None = None, contains: str = ""
) -> str | None:
    """Return why a health page is not well; None if it says 200 and holds a text."""
    status, body = answer(url, authority=authority, client=client)
    if status == 0:
        return body
    if status != 200 or contains not in body:
        return f"{url} says {status}: {' '.join(body.split())[:200]}"
    return None
