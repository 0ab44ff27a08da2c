"""Independent programs that judge what we write."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def dciodvfy_errors(path: Path) -> list[str]:
    """The lines in which David Clunie's `dciodvfy` (Debian package dicom3tools) calls something an error."""
    if shutil.which("dciodvfy") is None:
        pytest.skip("dciodvfy is missing: apt-get install dicom3tools")
    ended = subprocess.run(["dciodvfy", str(path)], text=True, capture_output=True, check=False, errors="replace")
    lines = (ended.stdout + ended.stderr).splitlines()
    assert lines, "dciodvfy said nothing at all"
    return [line for line in lines if line.startswith("Error")]
