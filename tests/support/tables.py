"""A small table of claims, and the verbs on it, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medweave_steps.cli import main

ROWS, LISTED = 3000, 200
"""Of the claims that tests share, and how many are of excluded providers."""
MLP = """\
layers:
  - {kind: dense, units: 100}
  - {kind: activation, function: relu}
  - {kind: dropout, rate: 0.2}
  - {kind: dense, units: outputs}
"""
RECIPE = (
    "--task", "classification", "--sampling", "natural", "--optimizer", "sgd", "--momentum", "0", "--schedule", "constant",
    "--learning-rate", "0.01", "--batch-size", "128", "--precision", "float32", "--num-threads", "1",
)  # fmt: skip


def phantom(folder: Path, kind: str, *options: str) -> Path:
    """Write a synthetic table and return its folder."""
    output = folder / kind
    assert main(["phantom", kind, "--output", str(output), "--run-report", str(folder / f"{kind}.json"), *options]) == 0
    return output


def encode(claims: Path, output: Path, *options: str, schema: Path | None = None) -> int:
    """Encode claims; return the exit code. The run report is next to the output."""
    words = [
        "encode-table",
        "--tables",
        str(claims / "claims.tsv"),
        "--table-schema",
        str(schema or claims / "schema.yml"),
    ]
    words += ["--target-list", str(claims / "exclusions.csv"), "--output", str(output)]
    return main([*words, "--run-report", f"{output}.json", *options])


def train(training_set: Path, output: Path, *options: str, layers: str = MLP) -> int:
    """Train the MLP on encoded rows; return the exit code."""
    file = output.with_suffix(".yml")
    file.write_text(layers)
    words = [
        "train",
        "--training-set",
        str(training_set),
        "--output",
        str(output),
        "--network-file",
        str(file),
        *RECIPE,
    ]
    return main([*words, "--training-log", f"{output}_log", "--run-report", f"{output}.json", *options])


def report_of(output: Path) -> dict[str, Any]:
    """Return the run report that lies next to an output."""
    document: dict[str, Any] = json.loads(Path(f"{output}.json").read_text())
    return document
