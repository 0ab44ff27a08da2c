"""List a path with the commands that are sent to a site."""

from __future__ import annotations

import subprocess
from pathlib import Path

from medweave_connectors.transfer.manifest import manifest


def run_shell(words: list[str]) -> str:
    """Run a command line in a shell. Return its standard output."""
    return subprocess.run(["sh", "-c", " ".join(words)], capture_output=True, text=True, check=True).stdout


def listed(path: Path) -> manifest.Manifest:
    """Return the manifest of a path, with digests."""
    return manifest.parse(run_shell(manifest.command(str(path))))
