"""What lies below a path, as the words that are sent to a site list it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from medweave_connectors.transfer.manifest import manifest


def told(words: list[str]) -> str:
    """What a shell prints for such words."""
    return subprocess.run(["sh", "-c", " ".join(words)], capture_output=True, text=True, check=True).stdout


def listed(path: Path) -> manifest.Manifest:
    """A path with its digests."""
    return manifest.parse(told(manifest.command(str(path))))
