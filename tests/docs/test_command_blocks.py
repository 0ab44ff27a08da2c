"""The command blocks of tutorials and how-to guides run as they are on the page.

Each page has one shell, in a folder with a copy of the repository's workflows, sites and charts. A block that needs more is
marked by the line before it: `<!-- needs: a Slurm site -->`. `tests/unit/test_docs.py` checks commands and options of all blocks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_blocks import blocks_of, script_of
from support.seeding import ROOT, copy_repository

LIMIT_S = 300  # for one page; all of them take about a minute on two cores
# test_tutorial.py runs it, and checks what it writes.
PAGES = sorted(
    {*ROOT.glob("docs/how-to/*.md"), *ROOT.glob("docs/tutorials/*.md")} - {ROOT / "docs/tutorials/first-run.md"}
)
RUNNABLE = [page for page in PAGES if any(block.needs is None for block in blocks_of(page.read_text()))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.stem)
def test_unmarked_blocks_run_as_written(page: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    copy_repository(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEDWEAVE_", "KUBE"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script_of(page, blocks_of(page.read_text()))],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, (
        f"the last block named below failed, exit code {process.returncode}:\n{output[-3000:]}"
    )
