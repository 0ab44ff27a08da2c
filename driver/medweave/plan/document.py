"""What a plan says, as plain data: `medweave plan --format json` writes it, and its JSON Schema is made from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from medweave_core.contracts.schema import schema_for

SCHEMA = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What earlier runs took, one value for each run.

    Attributes:
        num_runs: runs that were counted.
        median: the median of their values; of two, the mean.
        low: the least of them.
        high: the greatest of them.
    """

    num_runs: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A resource that a step's tool asks for, on each node or pod.

    Attributes:
        name: the resource.
        unit: unit of the numbers.
        least: what the tool cannot do without.
        most: what it uses at the most; the same as `least` where it says nothing else.
        cap: the most that the place gives a job, by the site file; null where that says nothing.
    """

    name: Literal["cores", "memory", "GPUs", "time"]
    unit: Literal["cores", "MiB", "GPUs", "s"]
    least: float
    most: float
    cap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Whether a step's work would be done again, by what the folder of runs keeps.

    Attributes:
        state: `reused` where all of its jobs get what earlier runs have written, `runs` where one of them would surely run,
            `not-known` where it cannot be told before.
        from_runs: the runs whose outputs its jobs would get.
        num_jobs: its jobs; null where that is not known.
        num_reused: of these, those that would surely be reused.
        after: the steps that run before it and whose outputs decide about it, where it is not known for that reason.
        unless: deployment that is not asked, and may have lost its outputs or got other programs or settings; null on this machine.
        why: why it would run, or is not known; empty where the other keys say it all.
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
        step: its path, as bindings name it.
        label: what its tool does, in the tool's own words.
        runs: whether it runs; null where only the run can tell.
        condition: the workflow's input that says whether it runs; empty where it always does.
        after: the steps whose outputs it reads.
        inputs: the workflow's inputs with files or folders that it reads.
        role: its role, by the workflow's roles.yml.
        deployment: where it runs.
        service: which of the deployment's services; null where it has none.
        locations: nodes or pods of one job.
        connector: type of the deployment.
        why: what puts it there.
        one_job_for_each: what it is scattered over: one job for each of these; empty where it is one job.
        asks: what its tool asks for; what is not listed, the tool does not say.
        holds: classes of all that it reads and writes; null where the workflow does not say.
        job_seconds: wall time of one of its jobs at this place in earlier runs, s.
        job_wh: estimated electricity of one of its jobs at this place in earlier runs, Wh.
        core_hours: what all its jobs together held in earlier runs at this place, hours of one core: their time, by the cores that
            its tool asks for on each node or pod; null where it asks for none.
        gpu_hours: the same of GPUs, of the most that it asks for.
        cost: of these hours, in the plan's currency, if all of its jobs run; null where hours or prices are not known.
        reuse: whether its work would be done again; null where it does not run.
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
    asks: tuple[Asked, ...]
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
        name: the workflow's input.
        place: deployment at which it lies already; null for the machine that drives the run.
        classes: classes of its data; null where the workflow does not say.
        num_files: files in it, counted now; null for what lies elsewhere.
        num_bytes: bytes in them; null for what lies elsewhere.
    """

    name: str
    place: str | None
    classes: tuple[str, ...] | None
    num_files: int | None
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that moves.

    Attributes:
        name: an input of the workflow (`cohort`) or the output of a step (`train/trained_model`).
        classes: classes of its data; null where the workflow does not say.
        needed_by: the steps that read it there; `results` for the outputs of the workflow.
        num_files: files in it; null where that is not known yet.
        num_bytes: bytes in them; null where that is not known yet.
    """

    name: str
    classes: tuple[str, ...] | None
    needed_by: tuple[str, ...]
    num_files: int | None
    num_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A route that a copy may take.

    Attributes:
        route: as the event log names it.
        condition: when it is taken.
    """

    route: Literal["from-driver", "to-driver", "same-file-system", "direct", "bucket", "through-driver"]
    condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """All that moves from one place to another.

    Attributes:
        source: deployment; null for the machine that drives the run, and for deployments on it.
        destination: deployment, or null, as for `source`.
        ways: the routes that it may take, the best one first; which one, is probed when it runs.
        items: what moves.
        earlier_bytes: what earlier runs sent from the one to the other, bytes.
        earlier_routes: the routes that these copies took.
    """

    source: str | None
    destination: str | None
    ways: tuple[Way, ...]
    items: tuple[Item, ...]
    earlier_bytes: Figures | None
    earlier_routes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What comes to lie at a place.

    Attributes:
        place: deployment; null for the machine that drives the run, and for deployments on it.
        gets: classes of what is read, written or brought there; null where the workflow does not say.
        may_hold: classes that the site's data rules allow there; null where the site has none.
    """

    place: str | None
    gets: tuple[str, ...] | None
    may_hold: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why the run would fail as it is planned.

    Attributes:
        what: what is wrong, and where.
        seen: what was found.
        expected: what should be there.
        do: what to do.
    """

    what: str
    seen: str
    expected: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do: which step goes where and why, what moves, what it asks for, how long it took before.

    Attributes:
        medweave_version: version that made the plan.
        workflow: its file, as seen from the current folder.
        job: the job file, as seen from there; a file that lies in no folder `jobs` is not named.
        site: the site file, as seen from there.
        site_name: the site's name, by that of its file.
        site_title: what the site file says of itself.
        inputs: the files and folders that it starts from.
        steps: its steps, in an order in which they can run.
        moves: what moves between places.
        holdings: what comes to lie where.
        seconds: wall time of earlier whole runs at the same places, s.
        wh: estimated electricity of earlier whole runs at the same places, Wh.
        core_hours: sum of the medians of the steps; null where one of them is not known.
        gpu_hours: the same of GPUs.
        currency: of all costs, ISO 4217; null where the site file has no prices.
        cost: sum of the steps that would run if nothing were reused; null where one of them is not known.
        num_earlier_runs: earlier runs of this workflow that were read, completed or not.
        looked_in: folders in which earlier runs were looked for; of reuse in the first one.
        problems: why it would fail; empty where nothing is known that is in the way.
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


# For people: where each class stands in the document.
PARTS = {
    "The document": Plan,
    "One of `inputs`": Input,
    "One of `steps`": PlannedStep,
    "One of `asks`": Asked,
    "`reuse` of a step": Reuse,
    "One of `moves`": Move,
    "One of `ways`": Way,
    "One of `items`": Item,
    "One of `holdings`": Holding,
    "`seconds`, `job_seconds`, `wh`, `job_wh`, `core_hours` and `gpu_hours` of a step, `earlier_bytes`": Figures,
    "One of `problems`": Problem,
}


def schema() -> dict[str, Any]:
    """The JSON Schema of a plan."""
    return schema_for(SCHEMA, Plan)
