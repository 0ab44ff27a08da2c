"""Resource requests and hints of steps, passed from the CWL document and the binding to the connector, by job name.

StreamFlow passes connectors the command, but not the tool's requests. Does not import streamflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from medweave_core.errors import UsageError
from medweave_core.runlog.engine_names import step_of

NAMESPACE = "urn:medweave:cwl#"
CUDA_REQUIREMENT = "http://commonwl.org/cwltool#CUDARequirement"
WORK_REUSE = "WorkReuse"  # of CWL; the engine reads it and does not pass it on
CUDA_KEYS = ("cudaDeviceCountMin", "cudaDeviceCountMax")  # the site's environment decides about versions of CUDA
DEFAULT_CORES, DEFAULT_MEMORY_MIB = 1.0, 256.0  # the engine's defaults for tools of CWL 1.1 and 1.2
HINT_KEYS: Mapping[str, frozenset[str]] = {
    "Gang": frozenset(),
    "GPURequest": frozenset({"gpusMin", "gpusMax", "gpusTotal"}),
    "Checkpoint": frozenset({"folder"}),
    "Partial": frozenset(),
}
_FOLDER = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
_INPUT = re.compile(r"\$\(inputs\.([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHints:
    """medweave's hints of a step.

    Attributes:
        gang: `medweave:Gang`: the same command may be started once per node.
        gpus_min, gpus_max: `medweave:GPURequest`, GPUs on each node, as cores and memory are; without `gpusMax` the two are equal.
            Without it, `cwltool:CUDARequirement` counts; that requests one GPU unless it has a number.
        gpus_input: name of the input with the number of GPUs of the job over all its nodes (`gpusTotal: $(inputs.ranks)`);
            `gpus_max` is a node's share of it, 1 until the inputs are known. Empty for none.
        checkpoint_folder: `medweave:Checkpoint`: name of the folder inside the output folder where the command writes
            checkpoints. It outlives a failed attempt; the next one finds its path in MEDWEAVE_RESUME_FROM. The command
            gets USR1 some time before its time limit, in a node group that of node 0. Empty for none.
        partial: `medweave:Partial`: if the step is scattered, the outputs leave out jobs that fail.
        reuse: outputs of the tool may be cached: CWL's WorkReuse; an expression there counts as no.
        success_codes: exit codes besides 0 that count as success: CWL's `successCodes`.
    """

    gang: bool = False
    gpus_min: int = 0
    gpus_max: int = 0
    gpus_input: str = ""
    checkpoint_folder: str = ""
    partial: bool = False
    reuse: bool = True
    success_codes: tuple[int, ...] = ()

    def of_job(self, inputs: Mapping[str, Any], *, num_nodes: int) -> StepHints:
        """Return the hints for a job whose inputs are known, with its GPUs divided among its nodes.

        Args:
            inputs: values by the tool's names; a number of GPUs that is null or missing counts as 1.
        """
        if not self.gpus_input:
            return self
        total = inputs.get(self.gpus_input)
        share = math.ceil((total if isinstance(total, int) else 1) / num_nodes)
        return replace(self, gpus_max=max(self.gpus_min, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The resources that a job requests, and the locations that the scheduler chose.

    Attributes:
        cores: per node.
        memory_mib: per node, MiB.
        num_nodes: nodes or pods: `locations` of the binding's target.
        locations: names of the locations that StreamFlow chose; a queue is one location however many nodes it gives.
    """

    cores: float
    memory_mib: float
    hints: StepHints = StepHints()
    num_nodes: int = 1
    locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationSize:
    """The most that a job can have at a location; infinite if there is no limit.

    Attributes:
        memory_mib: MiB.
    """

    cores: float = math.inf
    memory_mib: float = math.inf
    gpus: float = math.inf

    def fits(self, *, cores: float, memory_mib: float, gpus: int) -> bool:
        """Return True if a request fits. The engine's defaults for tools without requests fit everywhere."""
        return (
            (cores <= max(self.cores, DEFAULT_CORES))
            and memory_mib <= max(self.memory_mib, DEFAULT_MEMORY_MIB)
            and gpus <= self.gpus
        )

    def __str__(self) -> str:
        known = {"cores": self.cores, "MiB of memory": self.memory_mib, "GPUs": self.gpus}
        return ", ".join(f"{number:g} {unit}" for unit, number in known.items() if number < math.inf) or "no limits"


_NO_HINTS = StepHints()
_steps: dict[str, StepHints] = {}
_jobs: dict[str, JobRequest] = {}


def note_step(step: str, hints: StepHints) -> None:
    """Store the hints of a step, by its path (`/train`)."""
    _steps[step] = hints


def hints_of(job_name: str) -> StepHints:
    """Return the hints of a job's step; default hints if none are known."""
    return _steps.get(step_of(job_name), _NO_HINTS)


def note_job(job_name: str, request: JobRequest) -> None:
    """Store a job's request; a retry replaces it."""
    _jobs[job_name] = request


def request_of(job_name: str) -> JobRequest | None:
    """Return the job's request; None if medweave's scheduler did not place it."""
    return _jobs.get(job_name)


def require_request(job_name: str, *, where: str) -> JobRequest:
    """Return the job's request, for a connector that needs one.

    Args:
        where: the deployment's path in the file, for the message.

    Raises:
        UsageError: medweave's scheduler did not place the job.
    """
    request = request_of(job_name)
    if request is None:
        raise UsageError(
            f"{where}: the resource request of {job_name} is not known.",
            seen="another scheduler",
            expected="scheduling: {scheduler: {type: medweave.scheduler, config: {}}}",
            do="add it to the file",
        )
    return request


def locations_of(job_name: str, first: str) -> list[str]:
    """Return the locations where the command of a job is started: all that it has, in order of rank, with the hint medweave:Gang.

    Args:
        first: the location at which the engine runs the job.
    """
    request = request_of(job_name)
    is_group = request is not None and request.hints.gang and len(request.locations) > 1
    return list(request.locations) if request is not None and is_group else [first]


def refuse_without_gang(request: JobRequest, *, where: str) -> None:
    """Refuse several nodes for a step that is not a node group.

    Args:
        where: path of the deployment or its service in the file, for the message.

    Raises:
        UsageError: see above.
    """
    if request.num_nodes > 1 and not request.hints.gang:
        raise UsageError(
            f"{where}: a step that is not a node group is bound to several nodes.",
            seen=f"locations: {request.num_nodes}",
            expected="one node, as the tool has no hint medweave:Gang",
            do="remove `locations` from the step's target",
        )


def full_name(name: str, namespaces: Mapping[str, str]) -> str:
    """Return `urn:medweave:cwl#Gang` for `medweave:Gang`, by the document's `$namespaces`."""
    prefix, colon, rest = name.partition(":")
    return namespaces[prefix] + rest if colon and prefix in namespaces else name


def read_hints(hints: Mapping[str, Mapping[str, Any]], *, where: str) -> StepHints:
    """Return the step hints from a tool's hints; others than medweave's are ignored.

    Args:
        hints: by their full name.
        where: path of the step, for messages.

    Raises:
        UsageError: an unknown hint of medweave, an unknown key, or invalid numbers.
    """
    own_hints = {name.removeprefix(NAMESPACE): hint for name, hint in hints.items() if name.startswith(NAMESPACE)}
    for name, hint in own_hints.items():
        keys = hint.keys() - {"class"}
        known = HINT_KEYS.get(name)
        if known is None or not keys <= known:
            raise UsageError(
                f"the tool of step {where} has an unknown medweave hint.",
                seen=f"medweave:{name} with {', '.join(sorted(keys)) or 'no keys'}",
                expected="medweave:Gang: {}, medweave:GPURequest: {gpusMin: …, gpusMax or gpusTotal: …}, "
                "medweave:Checkpoint: {folder: …} or medweave:Partial: {}",
                do="correct the hint in the CWL document",
            )
    gpus = own_hints.get("GPURequest") or _gpus_of_cuda(hints.get(CUDA_REQUIREMENT))
    gpus_input = _gpus_input(gpus, where=where)
    least = gpus.get("gpusMin", 0)
    most = gpus.get("gpusMax", least)
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most):
        raise UsageError(
            f"the tool of step {where} requests an invalid number of GPUs.",
            seen=f"gpusMin {least!r}, gpusMax {most!r}",
            expected="whole numbers, 0 ≤ gpusMin ≤ gpusMax",
            do="correct medweave:GPURequest (or cwltool:CUDARequirement) in the CWL document",
        )
    folder = _checkpoint_folder(own_hints.get("Checkpoint"), where=where)
    return StepHints(
        gang="Gang" in own_hints,
        gpus_min=least,
        gpus_max=max(most, 1) if gpus_input else most,
        gpus_input=gpus_input,
        checkpoint_folder=folder,
        partial="Partial" in own_hints,
        reuse=hints.get(WORK_REUSE, {}).get("enableReuse", True) is True,
    )


def _gpus_input(request: Mapping[str, Any], *, where: str) -> str:
    if "gpusTotal" not in request:
        return ""
    match = _INPUT.fullmatch(str(request["gpusTotal"]))
    if match is None or "gpusMax" in request:
        raise UsageError(
            f"the tool of step {where} names no input for its number of GPUs.",
            seen=f"gpusTotal {request['gpusTotal']!r}" + (" with gpusMax" if "gpusMax" in request else ""),
            expected="gpusTotal: $(inputs.NAME), without gpusMax",
            do="write medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.ranks)} in the CWL document",
        )
    return match[1]


def _checkpoint_folder(hint: Mapping[str, Any] | None, *, where: str) -> str:
    if hint is None:
        return ""
    folder = hint.get("folder")
    if not (isinstance(folder, str) and _FOLDER.fullmatch(folder)):
        raise UsageError(
            f"the tool of step {where} names no folder for its checkpoints.",
            seen=f"medweave:Checkpoint with folder {folder!r}",
            expected="the name of a folder in the output folder, of letters, digits, '.', '_' and '-'",
            do="write medweave:Checkpoint: {folder: checkpoints} in the CWL document",
        )
    return folder


def _gpus_of_cuda(hint: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return cwltool's request as keys of medweave:GPURequest."""
    if hint is None:
        return {}
    least_key, most_key = CUDA_KEYS
    least = hint.get(least_key, 1)
    return {"gpusMin": least, "gpusMax": hint.get(most_key, least)}
