"""What steps ask for: from the CWL document and the binding to the connector that starts the job, by name.

StreamFlow gives connectors the command and nothing of what the tool asked for. No streamflow in here.
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
WORK_REUSE = "WorkReuse"  # CWL's own, which the engine reads and hands to nobody
CUDA_KEYS = ("cudaDeviceCountMin", "cudaDeviceCountMax")  # versions of CUDA are for the site's environment to have
DEFAULT_CORES, DEFAULT_MEMORY_MIB = 1.0, 256.0  # what the engine asks for where a tool of CWL 1.1 or 1.2 says nothing
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
    """What a step says in hints of medweave's own.

    Attributes:
        gang: `medweave:Gang`: the same command may be started once per node.
        gpus_min, gpus_max: `medweave:GPURequest`, GPUs on each node, as cores and memory are; without `gpusMax` the two are equal.
            Where a tool has none, `cwltool:CUDARequirement` stands for it; that asks for one GPU unless it says how many.
        gpus_input: name of the input that says how many GPUs the job can use over all its nodes (`gpusTotal: $(inputs.ranks)`);
            `gpus_max` is a node's share of it, 1 until the inputs are known. Empty for none.
        checkpoint_folder: `medweave:Checkpoint`: name of the folder inside the output folder where the command keeps what it
            needs to continue. It outlives a failed attempt; the next one finds its path in MEDWEAVE_RESUME_FROM. The command
            gets USR1 some time before its time limit, in a gang that of node 0. Empty for none.
        partial: `medweave:Partial`: where the step is scattered, a job that fails leaves its place in the outputs out.
        reuse: what the tool has done may be reused. CWL's WorkReuse; an expression there counts as no.
        success_codes: exit codes besides 0 with which the command ends well: CWL's `successCodes`.
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
        """The same for a job whose inputs are known: its GPUs dealt to its nodes.

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
    """What a job asks for, and what the scheduler gave it.

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
class Size:
    """The most that a job can have in a place; infinite where nothing limits it.

    Attributes:
        memory_mib: MiB.
    """

    cores: float = math.inf
    memory_mib: float = math.inf
    gpus: float = math.inf

    def holds(self, *, cores: float, memory_mib: float, gpus: int) -> bool:
        """Whether a request fits. A tool that asks for no cores or memory is asked for by the engine: that fits everywhere."""
        return (
            (cores <= max(self.cores, DEFAULT_CORES))
            and memory_mib <= max(self.memory_mib, DEFAULT_MEMORY_MIB)
            and gpus <= self.gpus
        )

    def __str__(self) -> str:
        known = {"cores": self.cores, "MiB of memory": self.memory_mib, "GPUs": self.gpus}
        return ", ".join(f"{number:g} {what}" for what, number in known.items() if number < math.inf) or "no limits"


_NO_HINTS = StepHints()
_steps: dict[str, StepHints] = {}
_jobs: dict[str, JobRequest] = {}


def note_step(step: str, hints: StepHints) -> None:
    """Remembers the hints of a step, by its path (`/train`)."""
    _steps[step] = hints


def hints_of(job_name: str) -> StepHints:
    """The hints of a job's step; those of a step without hints where nothing is known."""
    return _steps.get(step_of(job_name), _NO_HINTS)


def note_job(job_name: str, request: JobRequest) -> None:
    """Remembers a job's request; a retry replaces it."""
    _jobs[job_name] = request


def request_of(job_name: str) -> JobRequest | None:
    """What the job asks for; None where it was not placed by medweave's scheduler."""
    return _jobs.get(job_name)


def must_know(job_name: str, *, where: str) -> JobRequest:
    """What the job asks for, for a place that starts nothing without it.

    Args:
        where: the deployment's place in the file, for the message.

    Raises:
        UsageError: it was not placed by medweave's scheduler.
    """
    request = request_of(job_name)
    if request is None:
        raise UsageError(
            f"{where}: nobody said what {job_name} asks for.",
            seen="another scheduler",
            expected="scheduling: {scheduler: {type: medweave.scheduler, config: {}}}",
            do="add it to the file",
        )
    return request


def full_name(name: str, namespaces: Mapping[str, str]) -> str:
    """`medweave:Gang` as `urn:medweave:cwl#Gang`, by the document's `$namespaces`."""
    prefix, colon, rest = name.partition(":")
    return namespaces[prefix] + rest if colon and prefix in namespaces else name


def read_hints(hints: Mapping[str, Mapping[str, Any]], *, where: str) -> StepHints:
    """The meaning of a tool's hints; those that are not medweave's are passed over.

    Args:
        hints: by their full name.
        where: path of the step, for messages.

    Raises:
        UsageError: an unknown hint of medweave's, an unknown key, or numbers that make no sense.
    """
    found = {name.removeprefix(NAMESPACE): hint for name, hint in hints.items() if name.startswith(NAMESPACE)}
    for name, hint in found.items():
        keys = hint.keys() - {"class"}
        known = HINT_KEYS.get(name)
        if known is None or not keys <= known:
            raise UsageError(
                f"the tool of step {where} has a hint that medweave does not know.",
                seen=f"medweave:{name} with {', '.join(sorted(keys)) or 'no keys'}",
                expected="medweave:Gang: {}, medweave:GPURequest: {gpusMin: …, gpusMax or gpusTotal: …}, "
                "medweave:Checkpoint: {folder: …} or medweave:Partial: {}",
                do="correct the hint in the CWL document",
            )
    gpus = found.get("GPURequest") or _gpus_of_cuda(hints.get(CUDA_REQUIREMENT))
    gpus_input = _gpus_input(gpus, where=where)
    least = gpus.get("gpusMin", 0)
    most = gpus.get("gpusMax", least)
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most):
        raise UsageError(
            f"the tool of step {where} asks for a number of GPUs that makes no sense.",
            seen=f"gpusMin {least!r}, gpusMax {most!r}",
            expected="whole numbers, 0 ≤ gpusMin ≤ gpusMax",
            do="correct medweave:GPURequest (or cwltool:CUDARequirement) in the CWL document",
        )
    folder = _checkpoint_folder(found.get("Checkpoint"), where=where)
    return StepHints(
        gang="Gang" in found,
        gpus_min=least,
        gpus_max=max(most, 1) if gpus_input else most,
        gpus_input=gpus_input,
        checkpoint_folder=folder,
        partial="Partial" in found,
        reuse=hints.get(WORK_REUSE, {}).get("enableReuse", True) is True,
    )


def _gpus_input(request: Mapping[str, Any], *, where: str) -> str:
    if "gpusTotal" not in request:
        return ""
    found = _INPUT.fullmatch(str(request["gpusTotal"]))
    if found is None or "gpusMax" in request:
        raise UsageError(
            f"the tool of step {where} does not say which input is its number of GPUs.",
            seen=f"gpusTotal {request['gpusTotal']!r}" + (" beside gpusMax" if "gpusMax" in request else ""),
            expected="gpusTotal: $(inputs.NAME), without gpusMax",
            do="write medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.ranks)} in the CWL document",
        )
    return found[1]


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
    """cwltool's request in the terms of ours."""
    if hint is None:
        return {}
    least_key, most_key = CUDA_KEYS
    least = hint.get(least_key, 1)
    return {"gpusMin": least, "gpusMax": hint.get(most_key, least)}
