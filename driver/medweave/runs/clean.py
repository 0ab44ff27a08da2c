"""`medweave clean RUN`: what a run has left at its sites and on this machine is ended and removed; its reports stay."""

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

from medweave.runs.clean_clusters import clean_clusters, printed
from medweave.project.deployments import wrapped
from medweave_core.runlog.history import LOG_FILE, Run, read_run
from medweave.project.schemas import streamflow_schema
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.documents.field_errors import check
from medweave_connectors.jobs.reattach import journal
from medweave_core.documents.line_numbers import Where, shown
from medweave_core.documents.streamflow_bindings import targets
from medweave_connectors.transfer.store.folder_commands import remove_traces
from medweave_core.documents.streamflow_paths import expand
from medweave_core.runlog.log_state import driver_lives
from medweave_core.runlog.run_ownership import RECORD_MARK, RunOwner, recorded_owner
from medweave_core.runlog.run_folder import WORK
from medweave.project.run_files import file_of_run
from medweave_connectors.sites.slurm.commands import at_cluster, cancel_all
from medweave_core.errors import StepError, TryAgainError, UserInputError

DESCRIPTION = (
    "Ends what a run has left in queues and clusters (Slurm's jobs, Kubernetes' Jobs, releases, pods), and removes its folders at\n"
    "the sites, what the sites' stores have and no other run uses, and its scratch on this machine. Its event log and the reports\n"
    "of its steps stay. A site that cannot be reached, and a folder that no pod sees any more, are told, and nothing is called\n"
    "clean then."
)
REACHED = ("medweave.local", "medweave.ssh")
LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine that is reached, and what is done there.

    Attributes:
        deployment: its name in the file.
        workdirs: folders that hold those of runs.
        clusters: of the Slurm deployments that submit from there; an empty name is the machine's own.
    """

    deployment: str
    workdirs: tuple[str, ...]
    clusters: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave clean`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run (runs/<run-id>)")
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="the streamflow.yml of the run (default: the one in its folder, else that beside the folder of runs)",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Cleans, and prints what was there.

    Raises:
        UserInputError: no such run or file, or the run goes on.
        TryAgainError: another run goes on with its jobs, or something stays: a site could not be reached, or its jobs do not end.
    """
    record = read_run(namespace.run)
    if (refused := refusal(record)) is not None:
        raise refused
    for line in clean(record, file_of_run(record, namespace.file)):
        print(line)
    return 0


def refusal(record: Run) -> StepError | None:
    """Why a run is left alone: its driver lives, and looks after its own, or a later run goes on with its jobs. None for others."""
    if driver_lives(record.folder / LOG_FILE):
        return UserInputError(
            f"the run {record.run_id} goes on.",
            seen=f"its driver, process {record.facts.get('pid')}",
            expected="a run that has ended, or whose driver was killed",
            do="end it with Ctrl-C, which ends its jobs, and clean afterwards",
        )
    if taken := _taken_over(record):
        return TryAgainError(
            f"another run goes on with jobs of the run {record.run_id}.",
            seen=f"taken over: {', '.join(taken)}",
            expected="a run that no other one takes anything from",
            do="clean it when the other run has ended; medweave ps names the runs that go on",
        )
    return None


def _taken_over(record: Run) -> list[str]:
    """The run's jobs that drivers look after which live."""
    return sorted(
        {
            submission.job
            for file in (journal.SLURM, journal.KUBERNETES)
            for submission in journal.shared(record.folder, file)
        }
    )


def clean(record: Run, file: Path) -> list[str]:
    """Ends and removes what a run has left at the sites of a streamflow.yml and on this machine; what was there.

    Raises:
        UserInputError: no such file.
        TryAgainError: something stays: a site could not be reached, or its jobs do not end.
    """
    document = read_mapping(file, "streamflow.yml")
    check(document, streamflow_schema(), file, ())
    places = places_of(document)
    owner = recorded_owner(record.folder, record.run_id)
    keys = list(journal.read(record.folder / journal.SLURM))
    printed_lines = _clean(file, document, places, owner, keys) if places else []
    lines = []
    for place, printed_by in zip(places, printed_lines, strict=True):
        counts = [int(line) for line in printed_by if line.isdecimal()]
        jobs = f"{sum(counts)} jobs ended, " if place.clusters else ""
        folders = ", ".join(line for line in printed_by if not line.isdecimal())
        lines.append(f"{place.deployment}: {jobs}{folders or 'no folder'} removed")
    lines += clean_clusters(record, owner, file, document)
    remove_scratch(record)
    return [*lines, f"this machine: {shown(record.folder / WORK)} removed"]


def remove_scratch(record: Run) -> None:
    """Remove the scratch of a run on this machine.

    Raises:
        UserInputError: the run has a chosen id and no token, so the folder may belong to another user.
    """
    scratch = record.folder / WORK
    if scratch.exists() and not recorded_owner(record.folder, record.run_id).is_certain:
        raise UserInputError(
            f"the scratch of the run {record.run_id} was not removed: nothing shows that the run created it.",
            seen=f"{shown(scratch)}; the run has a chosen id, and its folder has no {RECORD_MARK}, as with older versions",
            expected=f"a generated id, or the {RECORD_MARK} that the run wrote",
            do="look into the folder, and remove it by hand if it is the run's",
        )
    shutil.rmtree(scratch, ignore_errors=True)


def places_of(document: Mapping[str, Any]) -> list[Place]:
    """The machines that the jobs of a streamflow.yml reach; clusters of pods are none."""
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
        Place(deployment=name, workdirs=tuple(sorted(found)), clusters=tuple(sorted(clusters[name])))
        for name, found in workdirs.items()
        if found or clusters[name]
    ]


def _base(name: str, deployments: Mapping[str, Any]) -> str | None:
    """The machine behind a deployment; None for pods."""
    seen: list[str] = []
    while name in deployments and name not in seen:
        if deployments[name]["type"] in REACHED:
            return name
        seen.append(name)
        name = wrapped(deployments[name]) or ""
    return None


def _script(file: Path, place: Place, owner: RunOwner, keys: Sequence[str]) -> str:
    where = Where(file, ("deployments", place.deployment, "workdir"))
    lines = [f"( {at_cluster(cluster, cancel_all(owner, keys))} )" for cluster in place.clusters]
    return "\n".join(("set -e", *lines, *(remove_traces(expand(text, where=where), owner) for text in place.workdirs)))


def _clean(
    file: Path, document: Mapping[str, Any], places: Sequence[Place], owner: RunOwner, keys: Sequence[str]
) -> list[list[str]]:
    """Run a script at each place, by a run of its own over the deployments of the file; return the lines that each has printed."""
    with tempfile.TemporaryDirectory(prefix="medweave-clean-") as name:
        folder = Path(name)
        steps = {f"place_{number}": _script(file, place, owner, keys) for number, place in enumerate(places)}
        (folder / "clean.cwl").write_text(json.dumps(_workflow(steps)), encoding="utf-8")
        (folder / "clean.json").write_text("{}", encoding="utf-8")
        config = {"file": str(folder / "clean.cwl"), "settings": str(folder / "clean.json")}
        bindings = [
            {"step": f"/place_{number}", "target": {"deployment": place.deployment}}
            for number, place in enumerate(places)
        ]
        text = json.dumps(
            {
                "version": "v1.0",
                "workflows": {"clean": {"type": "cwl", "config": config, "bindings": bindings}},
                "deployments": {place.deployment: document["deployments"][place.deployment] for place in places},
                "scheduling": {"scheduler": {"type": "medweave.scheduler", "config": {}}},
                "database": {"type": "medweave.database", "config": {}},
            }
        )
        _run(file, text, folder)
        return [(folder / "told" / f"{name}.txt").read_text(encoding="utf-8").splitlines() for name in steps]


def _workflow(scripts: Mapping[str, str]) -> dict[str, Any]:
    steps, outputs = {}, {}
    for name, script in scripts.items():
        tool = {
            "class": "CommandLineTool",
            "baseCommand": ["sh", "-c", script],
            "inputs": {},
            "stdout": f"{name}.txt",
            "outputs": {"told": {"type": "stdout"}},
        }
        steps[name] = {"run": tool, "in": {}, "out": ["told"]}
        outputs[f"{name}_told"] = {"type": "File", "outputSource": f"{name}/told"}
    return {"cwlVersion": "v1.2", "class": "Workflow", "inputs": {}, "outputs": outputs, "steps": steps}


def _run(file: Path, text: str, folder: Path) -> None:
    # Beside the file: relative paths of its deployments start there.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".medweave-clean-", suffix=".yml") as bound:
        bound.write(text)
        bound.flush()
        words = [str(Path(sys.executable).parent / "streamflow"), "run", "--quiet", bound.name]
        own = {"MEDWEAVE_RUNS_DIR": str(folder / "runs"), "MEDWEAVE_RUN_ID": posixpath.basename(folder)}
        printed([*words, "--outdir", str(folder / "told")], limit_s=LIMIT_S, environment={**os.environ, **own})
