"""A test that is skipped in CI hides a hole: only what CI cannot have may be lacking."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.cwl_files import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "reason", "ends_well"),
    [
        ("true", "there is no browser", False),
        ("true", "no COMPSs runtime: COMPSS_HOME is not set", True),
        ("", "there is no browser", True),
    ],
)
@pytest.mark.parametrize("where", ["test", "fixture"])
def test_a_skip_fails_in_ci(tmp_path: Path, ci: str, reason: str, ends_well: bool, where: str) -> None:
    skip = f"    pytest.skip({reason!r})\n"
    body = {
        "test": f"def test_it():\n{skip}",
        "fixture": f"@pytest.fixture\ndef needed():\n{skip}\ndef test_it(needed):\n    pass\n",
    }[where]
    (tmp_path / "test_it.py").write_text(f"import pytest\n{body}", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert (ended.returncode == 0) is ends_well, ended.stdout
    assert ends_well or f"skipped in CI: Skipped: {reason}" in ended.stdout
