"""The tutorial's commands are executed as they are on the page, in one shell, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "first-run.md"


@pytest.mark.pipeline
def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL)
    assert len(blocks) == 7
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -euxo pipefail\n" + "\n".join(blocks)
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    delivered = {file.name for file in tmp_path.glob("segmentations/case-*/*")}
    assert delivered == {"lesion_mask.nii.gz", "lesion_mask.dcm", "lesions.csv", "lesions_sr.dcm"}
    # The page promises that the broken copy's error names positions, and it must not have been for another reason.
    assert "missing" in ended.stderr
    assert not (tmp_path / "broken_index.json").exists()
