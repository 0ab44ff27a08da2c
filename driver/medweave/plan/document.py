"""The plan as plain data: `medweave plan --format json` writes it, and its JSON Schema is made from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from medweave_core.contracts.schema import schema_for

SCHEMA = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of earlier runs, one value for each run.

    Attributes:
        num_runs: number of runs.
        median: median of their values.
        low: lowest value.
        high: highest value.
    """

    num_runs: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """A resource that a step's tool requests, on each node or pod.

    Attributes:
        name: the resource.
        unit: unit of the numbers.
        least: minimum amount that the tool requires.
        most: maximum amount that the tool uses; equal to `least` unless the tool declares a maximum.
        cap: maximum for one job at this deployment and service; null if the site file sets no limit.
    """

    name: Literal["cores", "memory", "GPUs", "time"]
    unit: Literal["cores", "MiB", "GPUs", "s"]
    least: float
    most: float
    cap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Whether a step would be a cache hit, by the cache in the folder of runs.

    Attributes:
        state: `reused` if all of the step's jobs are cache hits, `runs` if at least one job certainly runs,
            `not-known` if the run itself decides.
        from_runs: the runs whose outputs would be reused.
        num_jobs: number of the step's jobs; null if not known.
        num_reused: number of these jobs that are certainly cache hits.
        after: if the state is `not-known` for this reason: steps whose outputs decide whether this step is a cache hit.
        unless: deployment that stores the outputs; null on this machine. `plan` does not contact it, so the step runs if the
            outputs were removed there, or if programs or settings there have changed.
        why: reason for `runs` or `not-known`; empty if the other keys explain the state.
    """

    state: Literal["reused", "runs", "not-known"]
    from_runs: tuple[str, ...] = ()
    num_jobs: int | None = None
    num_reused: int = 0
    after: tuple[str, ...] = ()
    unless: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step and its place.

    Attributes:
        step: path of the step, as in bindings.
        label: `label` of its tool.
        runs: whether it runs; null if only the run can decide.
        condition: workflow input that decides whether the step runs; empty if it always runs.
        after: the steps whose outputs it reads.
        inputs: workflow inputs that it reads, if they are files or folders.
        role: its role in roles.yml of the workflow.
        deployment: deployment where it runs.
        service: name of the deployment's service; null if it has no services.
        locations: number of nodes or pods of one job.
        connector: type of the deployment, such as `medweave.slurm`.
        why: reason for the placement.
        one_job_for_each: inputs that the step is scattered over, with one job for each item; empty if the step is one job.
        asks: resources that its tool requests. Resources that the tool does not declare are not listed.
        holds: data classes of all inputs and outputs; null if the workflow does not declare classes.
        job_seconds: wall time of one of its jobs at this place in earlier runs, s.
        job_wh: estimated electricity of one of its jobs at this place in earlier runs, Wh.
        core_hours: core hours of all its jobs together in earlier runs at this place: their time multiplied by the cores that
            its tool requests on each node or pod; null if it requests none.
        gpu_hours: GPU hours in the same runs, for the largest number of GPUs that it requests.
        cost: cost of these hours, in the plan's currency, if all of its jobs run; null if hours or prices are not known.
        reuse: whether the step would be a cache hit; null if it does not run.
    """

    step: str
    label: str
    runs: bool | None
    condition: str
    after: tuple[str, ...]
    inputs: tuple[str, ...]
    role: str
    deployment: str
    service: str | None
    locations: int
    connector: str
    why: str
    one_job_for_each: tuple[str, ...]
    asks: tuple[ResourceRequest, ...]
    holds: tuple[str, ...] | None
    job_seconds: Figures | None
    job_wh: Figures | None
    core_hours: Figures | None
    gpu_hours: Figures | None
    cost: float | None
    reuse: Reuse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Files or folders that the workflow starts from.

    Attributes:
        name: name of the workflow input.
        place: deployment at which the input is already stored; null for the driver's machine.
        classes: classes of its data; null if the workflow does not declare them.
        num_files: number of files, counted now; null for an input at a site.
        num_bytes: size in bytes; null for an input at a site.
    """

    name: str
    place: str | None
    classes: tuple[str, ...] | None
    num_files: int | None
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An input or output that is transferred.

    Attributes:
        name: an input of the workflow (`cohort`) or the output of a step (`train/trained_model`).
        classes: classes of its data; null if the workflow does not declare them.
        needed_by: steps at the destination that read it; `results` for outputs of the workflow.
        num_files: number of files; null if not known yet.
        num_bytes: size in bytes; null if not known yet.
    """

    name: str
    classes: tuple[str, ...] | None
    needed_by: tuple[str, ...]
    num_files: int | None
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRoute:
    """A route that a copy may take.

    Attributes:
        route: name of the route in the event log.
        condition: when the route is used.
    """

    route: Literal["from-driver", "to-driver", "same-file-system", "direct", "bucket", "through-driver"]
    condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """All transfers from one place to another.

    Attributes:
        source: deployment; null for the machine of the driver and deployments on it.
        destination: deployment; null as for `source`.
        ways: possible routes, in order of preference; the run probes them and uses the first that works.
        items: inputs and outputs to transfer.
        earlier_bytes: bytes that earlier runs sent from `source` to `destination`.
        earlier_routes: routes of these copies.
    """

    source: str | None
    destination: str | None
    ways: tuple[PlannedRoute, ...]
    items: tuple[Item, ...]
    earlier_bytes: Figures | None
    earlier_routes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The data classes at a place.

    Attributes:
        place: deployment; null for the machine of the driver and deployments on it.
        gets: classes of the data that are read, written or copied there; null if the workflow does not declare classes.
        may_hold: classes that the site's data rules allow there; null if the site has no data rules.
    """

    place: str | None
    gets: tuple[str, ...] | None
    may_hold: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reason for which the planned run would fail.

    Attributes:
        what: the error and its place.
        seen: the actual value.
        expected: the expected value.
        do: how to fix it.
    """

    what: str
    seen: str
    expected: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run: placement of each step and the reason, transfers, requested resources, and times of earlier runs.

    Attributes:
        medweave_version: version that made the plan.
        workflow: path of the CWL workflow, relative to the current folder.
        job: path of the job file, relative to the current folder. A file outside of a folder `jobs` is not named, because its
            name may identify a patient.
        site: path of the site file, relative to the current folder.
        site_name: name of the site file without its extension.
        site_title: `title` of the site file.
        inputs: workflow inputs that are files or folders.
        steps: the steps, in order of execution.
        moves: transfers between places.
        holdings: data classes at each place.
        seconds: wall time of earlier whole runs at the same places, s.
        wh: estimated electricity of earlier whole runs at the same places, Wh.
        core_hours: sum of the medians of the steps; null if one of them is not known.
        gpu_hours: sum of the medians of the steps; null if one of them is not known.
        currency: currency of all costs (ISO 4217 code); null if the site file has no prices.
        cost: sum over the steps that would run without cache hits; null if one of them is not known.
        num_earlier_runs: number of earlier runs of this workflow that were read, completed or not.
        looked_in: folders that were searched for earlier runs. Cache hits are predicted from the first one only.
        problems: reasons for which the run would fail; empty if none is known.
    """

    medweave_version: str
    workflow: str
    job: str
    site: str
    site_name: str
    site_title: str
    inputs: tuple[Input, ...]
    steps: tuple[PlannedStep, ...]
    moves: tuple[Move, ...]
    holdings: tuple[Holding, ...]
    seconds: Figures | None
    wh: Figures | None
    core_hours: float | None
    gpu_hours: float | None
    currency: str | None
    cost: float | None
    num_earlier_runs: int
    looked_in: tuple[str, ...]
    problems: tuple[Problem, ...]


# Headings of the reference page: the place of each class in the document.
PARTS = {
    "The document": Plan,
    "One of `inputs`": Input,
    "One of `steps`": PlannedStep,
    "One of `asks`": ResourceRequest,
    "`reuse` of a step": Reuse,
    "One of `moves`": Move,
    "One of `ways`": PlannedRoute,
    "One of `items`": Item,
    "One of `holdings`": Holding,
    "`seconds`, `wh`, `job_seconds`, `job_wh`, `earlier_bytes`, and `core_hours` and `gpu_hours` of a step": Figures,
    "One of `problems`": Problem,
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan."""
    return schema_for(SCHEMA, Plan)
