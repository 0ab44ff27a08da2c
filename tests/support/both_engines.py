"""One workflow run by both engines' own commands, and the files that they wrote."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.cwl_files import ROOT, WORKFLOWS

BIN_DIR = Path(sys.executable).parent
FAKES = ROOT / "tests" / "fakes" / "bin"
FILE = """
version: v1.0
workflows:
  lung:
    type: cwl
    config: {{file: {workflow}, settings: {job}}}
    bindings: [{{step: /, target: {{deployment: laptop}}}}]
deployments: {{laptop: {{type: medweave.local, config: {laptop}}}}}
scheduling: {{scheduler: {{type: medweave.scheduler, config: {{}}}}}}
database: {{type: medweave.database, config: {{}}}}
"""


def run_both(
    folder: Path, workflow: str | Path, job: Mapping[str, Any], *, fakes: bool = False, first: Path | None = None
) -> dict[str, dict[str, str]]:
    """Run a lung workflow, or another by its path, under both engines at once; return path -> SHA-256 of each output.

    Args:
        fakes: the steps are the stand-ins of `tests/fakes`.
        first: as in `begin`.
    """
    (folder / "job.yml").write_text(json.dumps(job), encoding="utf-8")
    cwl = WORKFLOWS / "lung-nodule-segmentation" / workflow
    run_jobs(folder, cwl, {"streamflow": "job.yml", "cwltool": "job.yml"}, first=FAKES if fakes else first)
    return {name: digests(folder / f"by-{name}") for name in ("streamflow", "cwltool")}


def begin(
    folder: Path,
    cwl: Path,
    engine: str,
    job: str,
    outputs: str,
    *,
    log: Any,
    first: Path | None = None,
    laptop: str = "{}",
    targets: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start an engine's own command in a folder; everything runs on this machine.

    Args:
        engine: streamflow or cwltool.
        job: name of the job file there.
        outputs: name of the folder that it makes there.
        log: where its standard error goes.
        first: a folder of programs that replace the installed ones.
        laptop: configuration of StreamFlow's only deployment.
        targets: of cwltool, outputs of the workflow whose steps alone are run.
    """
    if engine == "streamflow":
        text = FILE.format(workflow=json.dumps(str(cwl)), job=job, laptop=laptop)
        (folder / "streamflow.yml").write_text(text, encoding="utf-8")
        words = ["streamflow", "run", "--quiet", "--outdir", outputs, "streamflow.yml"]
    else:
        # cwltool passes only named variables to a step. Without these its steps would run other code than this process, on a GPU,
        # or with OpenMP threads that spin (tests/conftest.py).
        names = [name for name in ("PYTHONPATH", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES") if name in os.environ]
        preserved = [word for name in names for word in ("--preserve-environment", name)]
        preserved += [word for name in targets for word in ("--target", name)]
        words = ["cwltool", *preserved, "--outdir", outputs, str(cwl), job]
    path = os.pathsep.join([*([str(first)] if first else []), str(BIN_DIR), os.environ["PATH"]])
    return subprocess.Popen(
        [str(BIN_DIR / words[0]), *words[1:]],
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.DEVNULL,
        stderr=log,
        text=True,
    )


def run_jobs(folder: Path, cwl: Path, jobs: Mapping[str, str], *, first: Path | None = None) -> None:
    """Run a workflow under several engines at once, each with its job file; outputs lie in `by-streamflow` and `by-cwltool`."""
    started = {}
    for name, job in jobs.items():
        with (folder / f"{name}.log").open("w") as log:
            started[name] = begin(folder, cwl, name, job, f"by-{name}", log=log, first=first)
    for name, process in started.items():
        assert process.wait(600) == 0, (folder / f"{name}.log").read_text()


def run_under_streamflow(folder: Path, cwl: Path, job: Mapping[str, Any]) -> dict[str, str]:
    """Run a workflow by `streamflow run`; return path -> SHA-256 of each output, which lie in `by-streamflow`."""
    (folder / "job.yml").write_text(json.dumps(job), encoding="utf-8")
    run_jobs(folder, cwl, {"streamflow": "job.yml"})
    return digests(folder / "by-streamflow")


def pseudonym_key(folder: Path) -> dict[str, str]:
    """Write a pseudonym key and return it as an input: with different keys, two runs split the patients differently."""
    (folder / "some.key").write_bytes(bytes(range(32)))
    return {"class": "File", "path": "some.key", "format": "http://edamontology.org/format_2333"}


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def only(found: Mapping[str, str], *names: str) -> dict[str, str]:
    return {path: digest for path, digest in found.items() if path.endswith(names)}
