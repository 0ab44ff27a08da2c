"""Two steps that count their executions, for tests of the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave.cli.main_command import main

ON = {"MEDWEAVE_REUSE": "1"}


def write_steps(folder: Path, *, kind: str, result: str, copy: str, mark: str, **keys: Any) -> None:
    """Write `tiny.cwl`: a step `copy` of the data, and a step `mark` that adds a word to its result; each counts its runs.

    Args:
        kind: File or Directory, of the data and of both results.
        result: the name under which they write it.
        copy, mark: their scripts; the data are `$1`, the word is `$2`.
        keys: more keys of the tool of `mark`.
    """

    def tool(name: str, script: str, inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "class": "CommandLineTool",
            "baseCommand": ["sh", "-c", f"echo run >> {folder}/{name}.count; {script}", "sh"],
            "inputs": {each: {"type": kind, "inputBinding": {"position": n}} for n, (each, kind) in enumerate(inputs.items())},
            "outputs": {"result": {"type": kind, "outputBinding": {"glob": result}}},
        } | more  # fmt: skip

    document = {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "inputs": {"data": kind, "word": "string"},
        "outputs": {"result": {"type": kind, "outputSource": "mark/result"}},
        "steps": {
            "copy": {"run": tool("copy", copy, {"data": kind}), "in": {"data": "data"}, "out": ["result"]},
            "mark": {
                "run": tool("mark", mark, {"data": kind, "word": "string"}, **keys),
                "in": {"data": "copy/result", "word": "word"},
                "out": ["result"],
            },
        },
    }
    (folder / "tiny.cwl").write_text(json.dumps(document))


def counts(folder: Path) -> tuple[int, int]:
    """Return the number of executions of `copy` and `mark`."""
    files = (folder / f"{name}.count" for name in ("copy", "mark"))
    return tuple(len(file.read_text().split()) if file.exists() else 0 for file in files)  # type: ignore[return-value]


def explained(folder: Path, step: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the reason that `medweave explain` prints for the last run."""
    assert main(["explain", step, "--runs", str(folder / "runs"), "--json"]) == 0
    (step_report,) = json.loads(capsys.readouterr().out)
    return str(step_report["why"])
