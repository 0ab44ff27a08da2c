"""The cache key of a job: one digest per part, so that `medweave explain` can name the part that changed. Pure.

The digests are keyed with a secret of the runs folder, so that names and numbers cannot be recovered by trying values.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from medweave_core.runlog.engine_names import nameless

SHOWN_CHARACTERS = 16  # of a part's digest, in the event log
# How the engine passes shell syntax of a tool.
_SCRIPT = re.compile(r"\$\(echo ([A-Za-z0-9+/=]+) \| base64 -d\)")
_OWN_FOLDERS = ("HOME", "TMPDIR")


def describe_value(value: Any, digest: Callable[[str], str]) -> Any:
    """Return the value of an input with files and folders replaced by their content digests.

    Args:
        digest: returns the content digest of a path.
    """
    if isinstance(value, Mapping):
        if value.get("class") not in ("File", "Directory"):
            return {name: describe_value(item, digest) for name, item in value.items()}
        secondary_files = [describe_value(item, digest) for item in value.get("secondaryFiles") or []]
        return [value["class"], value.get("basename"), digest(value["path"]), secondary_files]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [describe_value(item, digest) for item in value]
    return value


def key_parts(
    *,
    words: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[str | None],
    inputs: Mapping[str, Any],
    staged: Mapping[str, str],
    software: str,
    run_id: str,
    secret: bytes,
    processor: str = "",
    site: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the digests of a job's parts, by name: 64 hexadecimal digits each.

    Args:
        words: of the command, quoted for a shell.
        environment: what the tool sets.
        streams: files of stdin, stdout and stderr.
        inputs: values from `describe_value`, by name.
        staged: content digests of the output folder before the command, by path.
        software: a digest of the programs.
        processor: this machine's processor: the gate measures its speed, and its precision may differ from another's. At
            a remote site `software` includes the processor if it can be read there.
        site: for a remote job, where it runs and where its outputs stay.
    """
    variables = {name: text for name, text in environment.items() if name not in _OWN_FOLDERS}
    values: dict[str, Any] = {f"input {name}": value for name, value in inputs.items()} | {
        "command": [nameless(_script(item), run_id) for item in words],
        "environment": nameless(json.dumps(variables, sort_keys=True), run_id),
        "streams": list(streams),
        "files beside the command": dict(staged),
        "programs": software,
    }
    values |= {"processor": processor} if site is None else {"place": dict(site)}
    return {name: _digest(json.dumps(value, sort_keys=True), secret) for name, value in values.items()}


def compute_key(parts: Mapping[str, str], secret: bytes) -> str:
    """Return the cache key: 64 hexadecimal digits."""
    return _digest(json.dumps(dict(parts), sort_keys=True), secret)


def _script(word: str) -> str:
    return _SCRIPT.sub(lambda match: base64.b64decode(match[1]).decode(errors="replace"), word)


def _digest(text: str, secret: bytes) -> str:
    return hmac.new(secret, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
