"""One workflow by both engines' own commands, and what they wrote."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.cwl_files import ROOT, WORKFLOWS

BESIDE = Path(sys.executable).parent
FAKES = ROOT / "tests" / "fakes" / "bin"
FILE = """
version: v1.0
workflows:
  lung:
    type: cwl
    config: {{file: {workflow}, settings: {job}}}
    bindings: [{{step: /, target: {{deployment: laptop}}}}]
deployments: {{laptop: {{type: medweave.local, config: {{}}}}}}
scheduling: {{scheduler: {{type: medweave.scheduler, config: {{}}}}}}
database: {{type: medweave.database, config: {{}}}}
"""


def run_both(
    folder: Path, workflow: str | Path, job: Mapping[str, Any], *, fakes: bool = False
) -> dict[str, dict[str, str]]:
    """Runs a workflow of the lung pipelines, or another by its path, under both engines at once; path -> SHA-256 of each output."""
    (folder / "job.yml").write_text(json.dumps(job), encoding="utf-8")
    cwl = WORKFLOWS / "lung-nodule-segmentation" / workflow
    run_jobs(folder, cwl, {"streamflow": "job.yml", "cwltool": "job.yml"}, fakes=fakes)
    return {name: digests(folder / f"by-{name}") for name in ("streamflow", "cwltool")}


def run_jobs(folder: Path, cwl: Path, jobs: Mapping[str, str], *, fakes: bool = False) -> None:
    """Runs a workflow under both engines at once, each with its job file; outputs lie in `by-streamflow` and `by-cwltool`."""
    file = FILE.format(workflow=json.dumps(str(cwl)), job=jobs["streamflow"])
    (folder / "streamflow.yml").write_text(file, encoding="utf-8")
    path = os.pathsep.join([*([str(FAKES)] if fakes else []), str(BESIDE), os.environ["PATH"]])
    environment = os.environ | {"PATH": path}
    commands = {
        "streamflow": ["streamflow", "run", "--quiet", "--outdir", "by-streamflow", "streamflow.yml"],
        "cwltool": ["cwltool", "--outdir", "by-cwltool", str(cwl), jobs["cwltool"]],
    }
    started = {}
    for name, words in commands.items():
        with (folder / f"{name}.log").open("w") as log:
            started[name] = subprocess.Popen(
                [str(BESIDE / words[0]), *words[1:]], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=log
            )
    for name, process in started.items():
        assert process.wait(600) == 0, (folder / f"{name}.log").read_text()


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def only(found: Mapping[str, str], *names: str) -> dict[str, str]:
    return {path: digest for path, digest in found.items() if path.endswith(names)}
