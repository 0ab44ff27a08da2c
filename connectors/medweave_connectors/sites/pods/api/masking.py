"""Words of other programs without what nobody may read. Pure."""

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
    re.compile(r"(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{32,}"),  # long and mixed: nobody's word
)
_LEAST = 4  # shorter texts are words, and known ones are everywhere


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """The text with `***` for everything that looks like a secret, and for those that are known."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= _LEAST:
            text = text.replace(secret, HIDDEN)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + HIDDEN, text)
    return text
