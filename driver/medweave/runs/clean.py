"""`medweave clean RUN`: cancel jobs and remove files that a run left at its sites and on this machine; its reports stay."""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medweave.project.deployments import wrapped
from medweave.project.run_files import file_of_run
from medweave.project.schemas import streamflow_schema
from medweave.runs.clean_clusters import clean_clusters, run_program
from medweave_connectors.jobs.reattach import journal
from medweave_connectors.sites.slurm.commands import at_cluster, cancel_all
from medweave_connectors.transfer.store.folder_commands import remove_traces
from medweave_core.documents.field_errors import check
from medweave_core.documents.line_numbers import Where, shown
from medweave_core.documents.streamflow_bindings import targets
from medweave_core.documents.streamflow_paths import expand
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import StepError, TryAgainError, UserInputError
from medweave_core.runlog.history import LOG_FILE, Run, read_run
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_folder import WORK
from medweave_core.runlog.run_ownership import RECORD_MARK, RunOwner, recorded_owner

DESCRIPTION = """\
Cancel the jobs that a run left in queues and clusters, and remove its files. This covers Slurm jobs, Kubernetes
Jobs, Helm releases and pods, the folders of the run at its sites, its unshared files in the site stores, and its
scratch folder on this machine. The event log and the reports of the steps stay.

The command reports an error for a site that it cannot reach and for a folder on a volume that no pod mounts."""
EPILOG = """\
examples:
  medweave clean runs/lung-20260827-101500-3f2a
  medweave clean runs/lung-20260827-101500-3f2a --file streamflow.yml

exit codes:
  0   everything was removed
  2   wrong usage
  65  no such run, or the run is running
  75  something could not be removed; run the command again"""
REACHED = ("medweave.local", "medweave.ssh")
LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanTarget:
    """A machine on which traces of a run are removed.

    Attributes:
        deployment: name of the deployment in the file.
        host: one of its hosts, if it has several; else empty.
        workdirs: folders that contain the folders of runs.
        clusters: Slurm clusters to which jobs are submitted from there; an empty name is the machine's default cluster.
    """

    deployment: str
    host: str = ""
    workdirs: tuple[str, ...]
    clusters: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return its name for people."""
        return f"{self.deployment} {self.host}".rstrip()

    def alone(self, deployment: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the deployment with this host only."""
        return {**deployment, "config": {**deployment["config"], "nodes": [self.host]}} if self.host else deployment


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave clean`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder (runs/<run-id>)")
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="StreamFlow file of the run (default: streamflow.yml in the run folder, else next to runs/)",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Clean up after the run and print the removed jobs, releases and files.

    Raises:
        UserInputError: no such run or file, or the run is running.
        TryAgainError: another run has re-attached its jobs, a site could not be reached, or its jobs do not end.
    """
    record = read_run(namespace.run)
    if (error := cleaning_error(record)) is not None:
        raise error
    for line in clean(record, file_of_run(record, namespace.file)):
        print(line)
    return 0


def file_of(folder: Path) -> Path:
    """Return the streamflow.yml in the run's folder, else the one next to the folder of runs."""
    bound_file = folder / "streamflow.yml"
    return bound_file if bound_file.exists() else folder.parent.parent / "streamflow.yml"


def cleaning_error(record: Run) -> StepError | None:
    """Return why a run must not be cleaned: its driver is running, or a later run has re-attached its jobs. None otherwise."""
    if driver_lives(record.folder / LOG_FILE):
        return UserInputError(
            f"run {record.run_id} is running.",
            seen=f"driver process {record.facts.get('pid')}",
            expected="a run that has ended, or whose driver was killed",
            do="cancel it first: medweave cancel {record.run_id}",
        )
    if job_ids := _reattached_jobs(record):
        return TryAgainError(
            f"another run has re-attached jobs of run {record.run_id}.",
            seen=f"re-attached jobs: {', '.join(job_ids)}",
            expected="a run whose jobs no other run has re-attached",
            do="wait until the other run has ended; `medweave ps` lists the running ones",
        )
    return None


def _reattached_jobs(record: Run) -> list[str]:
    """Return the ids of the run's jobs that a running driver has re-attached."""
    return sorted(
        {
            submission.job
            for file in (journal.SLURM, journal.KUBERNETES)
            for submission in journal.attended_jobs(record.folder, file)
        }
    )


def clean(record: Run, file: Path) -> list[str]:
    """Cancel jobs and remove files of a run at its sites and on this machine; return a report as lines.

    Raises:
        UserInputError: no such file.
        TryAgainError: a site could not be reached, or its jobs do not end.
    """
    document = read_mapping(file, "streamflow.yml")
    check(document, streamflow_schema(), file, ())
    places = clean_targets(document)
    owner = recorded_owner(record.folder, record.run_id)
    keys = list(journal.read(record.folder / journal.SLURM))
    printed_lines = _clean(file, document, places, owner, keys) if places else []
    lines = []
    for place, printed_by in zip(places, printed_lines, strict=True):
        counts = [int(line) for line in printed_by if line.isdecimal()]
        jobs = f"{sum(counts)} jobs canceled, " if place.clusters else ""
        folders = ", ".join(line for line in printed_by if not line.isdecimal())
        lines.append(f"{place.name}: {jobs}{folders or 'no folder'} removed")
    lines += clean_clusters(record, owner, file, document)
    scratch = f"{shown(record.folder / WORK)} removed" if (record.folder / WORK).exists() else "no folder removed"
    remove_scratch(record)
    return [*lines, f"this machine: {scratch}"]


def remove_scratch(record: Run) -> None:
    """Remove the scratch of a run on this machine.

    Raises:
        UserInputError: the run has a chosen id and no token, so the folder may belong to another user.
    """
    scratch = record.folder / WORK
    if scratch.exists() and not recorded_owner(record.folder, record.run_id).is_certain:
        raise UserInputError(
            f"the scratch folder of run {record.run_id} was not removed: it may belong to another run.",
            seen=f"{shown(scratch)}; the run id was chosen by the user, and the run folder has no {RECORD_MARK} "
            "(older versions did not write one)",
            expected=f"a generated run id, or the {RECORD_MARK} of the run",
            do="check the folder, and remove it by hand if it belongs to this run",
        )
    shutil.rmtree(scratch, ignore_errors=True)


def clean_targets(document: Mapping[str, Any]) -> list[CleanTarget]:
    """Return the machines that the jobs of a streamflow.yml use; Kubernetes clusters are not among them."""
    deployments: Mapping[str, Any] = document.get("deployments") or {}
    workdirs: dict[str, set[str]] = {name: set() for name, d in deployments.items() if d["type"] in REACHED}
    clusters: dict[str, set[str]] = {name: set() for name in workdirs}
    workflows = (document.get("workflows") or {}).values()
    bound = [target for workflow in workflows for _, binding, target in targets(workflow) if "step" in binding]
    for name, deployment in deployments.items():
        base = _base(name, deployments)
        if base is None:
            continue
        if deployment["type"] == "medweave.slurm":
            clusters[base].add((deployment.get("config") or {}).get("cluster", ""))
        for place in (deployment, *(target for target in bound if target.get("deployment") == name)):
            if place.get("workdir"):
                workdirs[base].add(place["workdir"])
    return [
        CleanTarget(deployment=name, host=host, workdirs=tuple(sorted(folders)), clusters=tuple(sorted(clusters[name])))
        for name, folders in workdirs.items()
        if folders or clusters[name]
        for host in _hosts(deployments[name])
    ]


def _hosts(deployment: Mapping[str, Any]) -> list[str]:
    nodes = (deployment.get("config") or {}).get("nodes") or []
    return list(nodes) if len(nodes) > 1 else [""]


def _base(name: str, deployments: Mapping[str, Any]) -> str | None:
    """Return the name of the machine behind a deployment; None for pods."""
    seen: list[str] = []
    while name in deployments and name not in seen:
        if deployments[name]["type"] in REACHED:
            return name
        seen.append(name)
        name = wrapped(deployments[name]) or ""
    return None


def _script(file: Path, place: CleanTarget, owner: RunOwner, keys: Sequence[str]) -> str:
    where = Where(file, ("deployments", place.deployment, "workdir"))
    lines = [f"( {at_cluster(cluster, cancel_all(owner, keys))} )" for cluster in place.clusters]
    return "\n".join(("set -e", *lines, *(remove_traces(expand(text, where=where), owner) for text in place.workdirs)))


def _clean(
    file: Path, document: Mapping[str, Any], places: Sequence[CleanTarget], owner: RunOwner, keys: Sequence[str]
) -> list[list[str]]:
    """Run a script at each target by a workflow over the file's deployments; return the lines that each script printed."""
    with tempfile.TemporaryDirectory(prefix="medweave-clean-") as name:
        folder = Path(name)
        steps = {f"place_{number}": _script(file, place, owner, keys) for number, place in enumerate(places)}
        (folder / "clean.cwl").write_text(json.dumps(_workflow(steps)), encoding="utf-8")
        (folder / "clean.json").write_text("{}", encoding="utf-8")
        deployments = {
            f"{place.deployment}.host-{number}" if place.host else place.deployment: place.alone(
                document["deployments"][place.deployment]
            )
            for number, place in enumerate(places)
        }
        config = {"file": str(folder / "clean.cwl"), "settings": str(folder / "clean.json")}
        bindings = [
            {"step": f"/place_{number}", "target": {"deployment": name}} for number, name in enumerate(deployments)
        ]
        text = json.dumps(
            {
                "version": "v1.0",
                "workflows": {"clean": {"type": "cwl", "config": config, "bindings": bindings}},
                "deployments": deployments,
                "scheduling": {"scheduler": {"type": "medweave.scheduler", "config": {}}},
                "database": {"type": "medweave.database", "config": {}},
            }
        )
        _run(file, text, folder)
        return [(folder / "output" / f"{name}.txt").read_text(encoding="utf-8").splitlines() for name in steps]


def _workflow(scripts: Mapping[str, str]) -> dict[str, Any]:
    steps, outputs = {}, {}
    for name, script in scripts.items():
        tool = {
            "class": "CommandLineTool",
            "baseCommand": ["sh", "-c", script],
            "inputs": {},
            "stdout": f"{name}.txt",
            "outputs": {"output": {"type": "stdout"}},
        }
        steps[name] = {"run": tool, "in": {}, "out": ["output"]}
        outputs[f"{name}_output"] = {"type": "File", "outputSource": f"{name}/output"}
    return {"cwlVersion": "v1.2", "class": "Workflow", "inputs": {}, "outputs": outputs, "steps": steps}


def _run(file: Path, text: str, folder: Path) -> None:
    # In the folder of the file: relative paths of its deployments start there.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".medweave-clean-", suffix=".yml") as bound:
        bound.write(text)
        bound.flush()
        words = [str(Path(sys.executable).parent / "streamflow"), "run", "--quiet", bound.name]
        variables = {"MEDWEAVE_RUNS_DIR": str(folder / "runs"), "MEDWEAVE_RUN_ID": posixpath.basename(folder)}
        run_program(
            [*words, "--outdir", str(folder / "output")], limit_s=LIMIT_S, environment={**os.environ, **variables}
        )
