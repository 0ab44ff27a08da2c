"""Files below a path, as listed by the command that is sent to a site."""

from __future__ import annotations

import subprocess
from pathlib import Path

from medweave_connectors.transfer.manifest import manifest


def output_of(words: list[str]) -> str:
    """Return the output of a shell command."""
    return subprocess.run(["sh", "-c", " ".join(words)], capture_output=True, text=True, check=True).stdout


def listed(path: Path) -> manifest.Manifest:
    """Return a path with its digests."""
    return manifest.parse(output_of(manifest.command(str(path))))
