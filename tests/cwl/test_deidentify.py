"""The tool `deidentify` under cwltool: its outputs, and the key of an earlier run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cwl_files import ROOT
from support.identified import write_identified

BESIDE = Path(sys.executable).parent


def run(folder: Path, name: str, job: dict[str, Any]) -> Path:
    (folder / f"{name}.json").write_text(json.dumps(job))
    environment = os.environ | {"PATH": f"{BESIDE}{os.pathsep}{os.environ['PATH']}"}
    tool = ROOT / "workflows" / "tools" / "deidentify.cwl"
    ended = subprocess.run(
        [BESIDE / "cwltool", "--quiet", "--outdir", name, tool, f"{name}.json"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return folder / name


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_key_of_the_first_run_gives_the_second_the_same_names(tmp_path: Path) -> None:
    write_identified(tmp_path / "cohort")
    cohort = {"class": "Directory", "path": "cohort"}
    first = run(tmp_path, "first", {"cohort": cohort})
    assert {path.name for path in first.iterdir()} == {"de-identified", "home", "run_report.json"}
    assert names(first / "home") == {"pseudonym.key", "way_back.json"}
    key = {"class": "File", "path": "first/home/pseudonym.key", "format": "http://edamontology.org/format_2333"}
    second = run(tmp_path, "second", {"cohort": cohort, "pseudonym_key": key, "retain_patient_characteristics": True})
    assert names(second / "home") == {"way_back.json"}
    assert names(second / "de-identified") == names(first / "de-identified")
    assert json.loads((second / "run_report.json").read_text())["config"]["retain_patient_characteristics"] is True
