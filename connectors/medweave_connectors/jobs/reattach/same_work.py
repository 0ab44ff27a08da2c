"""What makes a job that was left the same work as one that is wanted. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from medweave_connectors.jobs.reattach.journal import Submission
from medweave_core import __version__
from medweave_core.runlog.engine_names import FOLDER, nameless


def fingerprint(parts: Mapping[str, Any], *, run_id: str) -> str:
    """What is computed and where, without the names of the run and of the engine's folders: 64 hexadecimal digits."""
    text = json.dumps({**parts, "version": __version__}, sort_keys=True)
    return hashlib.sha256(nameless(text, run_id).encode()).hexdigest()


def inputs_of(
    words: Sequence[str], environment: Mapping[str, str], *, output_directory: str, stdin: str | None
) -> tuple[str, ...]:
    """The paths that a command reads from folders of the engine, in the order in which it names them."""
    own = {output_directory, *(environment.get(name, "") for name in ("HOME", "TMPDIR"))}
    texts = [text for word in words for text in _words(word)]
    paths = [text[text.index("/") :] for text in (*texts, stdin or "") if FOLDER.search(text) and "/" in text]
    return tuple(path for path in paths if not any(path == each or path.startswith(f"{each}/") for each in own if each))


def is_there(left: Submission, wanted: Submission) -> str:
    """A shell condition: the job's folders are there, and its inputs have the content of the wanted one's.

    What a new job finds in its output folder is an input too: where the engine has staged something there, nothing is the same.
    """
    pairs = zip(left.inputs, wanted.inputs, strict=True)
    conditions = [
        f"[ -d {shlex.quote(left.folder)} ]",
        "{ " + " || ".join(f"[ -d {shlex.quote(path)} ]" for path in left.outputs) + "; }",
        f'[ -z "$(ls -A {shlex.quote(wanted.outputs[0])})" ]',
        *(f"diff -rq {shlex.quote(old)} {shlex.quote(new)} > /dev/null 2>&1" for old, new in pairs),
    ]
    return " && ".join(conditions)


def move(outputs: Sequence[str]) -> str:
    """A shell line that puts the output folder, the first of these that exists, where the last one is.

    Cut off anywhere, it may run again.
    """
    paths = [shlex.quote(path) for path in outputs]
    # The others are what the engine made for drivers that were gone before they could use it.
    moves = [
        f"if [ -d {old} ]; then rm -rf {' '.join(paths[place:])} && mv {old} {paths[-1]}; exit; fi"
        for place, old in enumerate(paths[:-1], start=1)
    ]
    return f"( {'; '.join((*moves, f'[ -d {paths[-1]} ]'))} )"


def _words(word: str) -> Sequence[str]:
    try:
        return shlex.split(word)
    except ValueError:  # a part of a shell's own syntax
        return [word]
