"""Comparison of an earlier job with a planned one. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_connectors.jobs.reattach.journal import Submission
from medweave_core.runlog.engine_names import FOLDER, nameless

# Format of the fingerprint, not medweave's version: an upgraded driver re-attaches to the jobs of the driver before it.
FORMAT = "0.1.0"


def fingerprint(parts: Mapping[str, Any], *, run_id: str) -> str:
    """Return a digest of a job's parts, without run ids and engine folders: 64 hexadecimal digits."""
    text = json.dumps({**parts, "version": FORMAT}, sort_keys=True)
    return hashlib.sha256(nameless(text, run_id).encode()).hexdigest()


def inputs_of(
    words: Sequence[str], environment: Mapping[str, str], *, output_directory: str, stdin: str | None
) -> tuple[str, ...]:
    """Return the paths in the engine's folders that a command reads, in order."""
    own = {output_directory, *(environment.get(name, "") for name in ("HOME", "TMPDIR"))}
    texts = [text for word in words for text in _words(word)]
    paths = [text[text.index("/") :] for text in (*texts, stdin or "") if FOLDER.search(text) and "/" in text]
    return tuple(
        path for path in paths if not any(path == folder or path.startswith(f"{folder}/") for folder in own if folder)
    )


def has_same_command(earlier: Submission, planned: Submission) -> bool:
    """Return True if two jobs have the same command and placement, and as many inputs, which `is_there` compares."""
    return earlier.fingerprint == planned.fingerprint and len(earlier.inputs) == len(planned.inputs)


def is_there(earlier: Submission, planned: Submission) -> str:
    """Return a shell condition: the earlier job's folders exist, and its inputs have the content of the planned one's.

    Files staged in the output folder are inputs too: if there are any, the jobs do not count as the same.
    """
    pairs = zip(earlier.inputs, planned.inputs, strict=True)
    conditions = [
        f"[ -d {shlex.quote(earlier.folder)} ]",
        "{ " + " || ".join(f"[ -d {shlex.quote(path)} ]" for path in earlier.outputs) + "; }",
        f'[ -z "$(ls -A {shlex.quote(planned.outputs[0])})" ]',
        *(f"diff -rq {shlex.quote(old)} {shlex.quote(new)} > /dev/null 2>&1" for old, new in pairs),
    ]
    return " && ".join(conditions)


def move(outputs: Sequence[str]) -> str:
    """Return a shell line that moves the output folder, the first of these that exists, to the last path.

    It may run again after an interruption.
    """
    paths = [shlex.quote(path) for path in outputs]
    # The engine made the others for drivers that died before they could use them.
    moves = [
        f"if [ -d {old} ]; then rm -rf {' '.join(paths[place:])} && mv {old} {paths[-1]}; exit; fi"
        for place, old in enumerate(paths[:-1], start=1)
    ]
    return f"( {'; '.join((*moves, f'[ -d {paths[-1]} ]'))} )"


def _words(word: str) -> Sequence[str]:
    try:
        return shlex.split(word)
    except ValueError:  # a fragment of shell syntax
        return [word]
