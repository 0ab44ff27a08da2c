"""Removal of secrets from the output of other programs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
_SECRETS = (
    re.compile(r"(?<=://)[^/@\s]+(?=@)"),  # user and password of an address
    re.compile(r"eyJ[\w-]{4,}(?:\.[\w-]*)*"),  # a JSON web token
    re.compile(r"(?i)(?<=bearer )\S+|(?<=basic )\S+"),
    re.compile(
        r"(?i)(?<![a-z])((?:[a-z_-]*)(?:token|password|passwd|secret|key(?:data)?)[\"']?\s*[=:]\s*)[\"']?[^\s\"',}]+"
    ),
    re.compile(r"(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{32,}"),  # long, with letters and digits: no word
)
_SHORTEST = 4  # shorter secrets are ordinary words, which occur everywhere


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with `***` for everything that looks like a secret, and for the known secrets."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: (match[1] if match.re.groups else "") + HIDDEN, text)
    return text
