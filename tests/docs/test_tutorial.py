"""The tutorial's commands are executed as they are on the page, in one shell, in order, and print what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.shown_output import blocks_of, first_missing

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "first-run.md"
END = "== end of block"


@pytest.mark.pipeline
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(TUTORIAL.read_text()) if block.language == "bash"]
    runnable = [block for block in blocks if not block.needs]
    assert len(runnable) == 7
    assert len(blocks) == 9, "installing, and the user's data, cannot be tried"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -euo pipefail\n" + "\n".join(f"{block.text}\necho '{END}'" for block in runnable)
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    for block, printed in zip(runnable, ended.stdout.split(f"{END}\n"), strict=False):
        assert block.shown, f"the page shows no output of:\n{block.text}"
        missing = first_missing(block.shown, printed)
        assert missing is None, f"the page shows {missing!r}:\n{block.text}\n{printed[-3000:]}"
    delivered = {file.name for file in tmp_path.glob("segmentations/case-*/*")}
    assert delivered == {"lesion_mask.nii.gz", "lesion_mask.dcm", "lesions.csv", "lesions_sr.dcm"}
    assert not (tmp_path / "broken_index.json").exists()
