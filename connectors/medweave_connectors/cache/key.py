"""What makes two jobs the same work: a digest of each part, so that it can be told which part has changed. Pure.

The digests are keyed with a secret of the folder of runs: nobody can find out a name or a number behind one by trying them.
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
# How the engine hands a tool's own shell syntax over.
_SCRIPT = re.compile(r"\$\(echo ([A-Za-z0-9+/=]+) \| base64 -d\)")
_OWN_FOLDERS = ("HOME", "TMPDIR")


def described(value: Any, digest: Callable[[str], str]) -> Any:
    """The value of an input, files and folders by content in the place of their paths.

    Args:
        digest: of what lies under a path.
    """
    if isinstance(value, Mapping):
        if value.get("class") not in ("File", "Directory"):
            return {name: described(each, digest) for name, each in value.items()}
        beside = [described(each, digest) for each in value.get("secondaryFiles") or []]
        return [value["class"], value.get("basename"), digest(value["path"]), beside]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [described(each, digest) for each in value]
    return value


def parts_of(
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
    place: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The parts of a job, by name: 64 hexadecimal digits each.

    Args:
        words: of the command, as a shell is given them.
        environment: what the tool sets.
        streams: files of stdin, stdout and stderr.
        inputs: as `described`, by name.
        staged: what lay in the output folder before the command, by content.
        software: a digest of the programs.
        processor: what computes: the gate measures its speed, and its precision is not every other's. Of another site it is
            in `software`, as far as it can be asked.
        place: of a job elsewhere, where it runs, and where its outputs stay.
    """
    own = {name: text for name, text in environment.items() if name not in _OWN_FOLDERS}
    told: dict[str, Any] = {f"input {name}": value for name, value in inputs.items()} | {
        "command": [nameless(_script(each), run_id) for each in words],
        "environment": nameless(json.dumps(own, sort_keys=True), run_id),
        "streams": list(streams),
        "files beside the command": dict(staged),
        "programs": software,
    }
    told |= {"processor": processor} if place is None else {"place": dict(place)}
    return {name: _digest(json.dumps(value, sort_keys=True), secret) for name, value in told.items()}


def key_of(parts: Mapping[str, str], secret: bytes) -> str:
    """The name of the work: 64 hexadecimal digits."""
    return _digest(json.dumps(dict(parts), sort_keys=True), secret)


def _script(word: str) -> str:
    return _SCRIPT.sub(lambda found: base64.b64decode(found[1]).decode(errors="replace"), word)


def _digest(text: str, secret: bytes) -> str:
    return hmac.new(secret, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
