"""The type stubs of StreamFlow against the installed StreamFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STUBS = Path(__file__).resolve().parents[3] / "connectors" / "stubs"
NOT_ABSTRACT = r"streamflow\.data\.remotepath\.StreamFlowPath\.\w+"  # see the stub


@pytest.mark.slow
def test_the_stubs_agree_with_the_installed_streamflow(tmp_path: Path) -> None:
    allowlist = tmp_path / "allowlist.txt"
    allowlist.write_text(NOT_ABSTRACT)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "streamflow", "--ignore-missing-stub", "--allowlist", allowlist],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(STUBS)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
