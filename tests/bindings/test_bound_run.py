"""A bound file is run by the real engine, from another folder, with data that lies at the site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from medweave.cli.main_command import main

WORKFLOW = """\
cwlVersion: v1.2
class: Workflow
inputs: {cohort: Directory}
outputs: {listing: {type: File, outputSource: prepare/listing}}
steps:
  prepare: {run: prepare.cwl, in: {cohort: cohort}, out: [listing]}
"""
TOOL = """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: [sh, -c, 'ls "$0" > listing.txt; pwd > where.txt; cat where.txt >> listing.txt']
inputs: {cohort: {type: Directory, inputBinding: {}}}
outputs: {listing: {type: File, outputBinding: {glob: listing.txt}}}
"""
SITE = """\
title: this machine, with its own data
deployments:
  desk:
    type: medweave.local
    workdir: ../scratch
    config: {}
roles: {preprocess: {deployment: desk}}
inputs: {cohort: {deployment: desk, workdir: "${COHORTS}"}}
"""


def test_a_bound_file_runs_from_any_folder(tmp_path: Path) -> None:
    files = {
        "workflows/lung/infer.cwl": WORKFLOW,
        "workflows/lung/prepare.cwl": TOOL,
        "workflows/lung/roles.yml": "infer.cwl: {/prepare: preprocess}\n",
        "workflows/lung/job.yml": "cohort: {class: Directory, path: ct}\n",
        "deployments/sites/desk.yml": SITE,
        "cohorts/ct/one.dcm": "",
        "elsewhere/none": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    folder, bound = tmp_path / "workflows" / "lung", tmp_path / "bound" / "streamflow.yml"
    words = ["bind", str(folder / "infer.cwl"), "--site", "desk", "--job", str(folder / "job.yml"), "-o", str(bound)]
    assert main(words) == 0
    assert str(tmp_path) not in bound.read_text()

    streamflow = Path(sys.executable).parent / "streamflow"
    ended = subprocess.run(
        [streamflow, "run", "--quiet", "--outdir", "results", bound],
        cwd=tmp_path / "elsewhere", env=os.environ | {"COHORTS": str(tmp_path / "cohorts")},
        text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    cohort, where = (tmp_path / "elsewhere" / "results" / "listing.txt").read_text().split()
    assert cohort == "one.dcm"
    assert Path(where).is_relative_to(tmp_path / "deployments" / "scratch")
    assert [path.name for path in (tmp_path / "bound").iterdir() if path.is_dir()] == ["runs"]
