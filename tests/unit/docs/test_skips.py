"""A test that is skipped in CI hides a hole: only what CI cannot have may be lacking."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.cwl_files import ROOT

REASONS = {"browser": "there is no browser", "runtime": "no COMPSs runtime: COMPSS_HOME is not set"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "outcomes"),
    [
        ("true", {"browser": "failure", "browser_of_fixture": "error", "runtime": "skipped", "runtime_of_fixture": "skipped"}),
        ("", {"browser": "skipped", "browser_of_fixture": "skipped", "runtime": "skipped", "runtime_of_fixture": "skipped"}),
    ],
)  # fmt: skip
def test_a_skip_fails_in_ci(tmp_path: Path, ci: str, outcomes: dict[str, str]) -> None:
    text = "import pytest\n"
    for name, reason in REASONS.items():
        skip = f"    pytest.skip({reason!r})\n"
        text += f"def test_{name}():\n{skip}@pytest.fixture\ndef {name}():\n{skip}"
        text += f"def test_{name}_of_fixture({name}):\n    pass\n"
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    words = ["-q", "-p", "conftest", "--rootdir", tmp_path, "--junitxml", tmp_path / "results.xml", tmp_path]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    cases = {case.get("name", ""): list(case) for case in ElementTree.parse(tmp_path / "results.xml").iter("testcase")}
    assert {name.removeprefix("test_"): parts[0].tag for name, parts in cases.items()} == outcomes, ended.stdout
    assert (ended.returncode == 0) is (ci == ""), ended.stdout
    for name, parts in cases.items():
        if parts[0].tag != "skipped":
            assert f"skipped in CI: Skipped: {REASONS['browser']}" in str(parts[0].text), name
