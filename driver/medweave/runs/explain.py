"""`medweave explain STEP`: why a step's jobs were run, or not run again, in words about what has changed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from medweave_core.runlog.history import Run, read_runs
from medweave_core.runlog.jobs import Job
from medweave.runs.listing import add_runs_option, folders_of
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UserInputError
from medweave_core.runlog.job_parts import changes, listed
from medweave_core.contracts.events import step_label

DESCRIPTION = (
    "Tells of each job of a step why a run did its work, or took what an earlier run had done: which input, parameter or program\n"
    "has changed since then. It reads the event logs of the runs, which hold no values: what has changed is named, and not shown."
)
MOST_NAMES = 12
_NOT_LOOKED_UP = (
    "it was not looked up whether it was done before: reuse is switched off (MEDWEAVE_REUSE, reuse_gib, storeGiB), or a connector "
    "or data manager is not medweave's"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why one job was run, or not.

    Attributes:
        run, job, state: the run's id, the job's label, and how the job ended.
        reused_from: the run whose outputs it got; empty where its command was run.
        compared_with: the earlier run that `changed` is about; empty for none.
        changed: parts of its work that were others then.
        why: one sentence.
    """

    run: str
    job: str
    state: str
    reused_from: str
    compared_with: str
    changed: tuple[str, ...]
    why: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave explain`."""
    parser.add_argument("step", metavar="STEP", help="the step's name, or a job's as the terminal has it (segment.3)")
    parser.add_argument("--run", metavar="RUN", help="id of the run, or its folder (default: the one that began last)")
    add_runs_option(parser)
    parser.add_argument("--json", action="store_true", help="a JSON list in the place of lines")


def run(namespace: argparse.Namespace) -> int:
    """Prints why.

    Raises:
        UserInputError: no such run, or no such step in it.
    """
    folder: Path = namespace.runs
    if namespace.run and len(Path(namespace.run).parts) > 1:
        folder = Path(namespace.run).parent
    folders_of(folder)  # it tells where there is none
    found = explain(read_runs(folder), namespace.step, Path(namespace.run).name if namespace.run else "")
    if namespace.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
        return 0
    print(f"Run {found[0].run}")
    width = max(len(each.job) for each in found)
    for each in found:
        print(f"  {each.job:<{width}}  {each.why}")
    return 0


def explain(runs: Sequence[Run], step: str, run_id: str = "") -> list[Why]:
    """Why the jobs of a step were run, or not.

    Args:
        runs: all that are known, in any order.
        step: its name or path, or the label of one job.
        run_id: of the run that is asked about; empty for the last one.

    Raises:
        UserInputError: there is no such run, or no such step in it.
    """
    ordered = sorted(runs, key=lambda each: each.started)
    chosen = next((each for each in reversed(ordered) if run_id in ("", each.run_id)), None)
    if chosen is None:
        raise UserInputError(
            "there is no such run.",
            seen=run_id or "a folder without runs",
            expected=", ".join(each.run_id for each in ordered[-3:]) or "a folder of runs with event logs",
            do=closest(run_id, [each.run_id for each in ordered])
            or "name a run of this folder with --run, or another folder with --runs",
        )
    name = step_label(step)
    last = {job.name: job for job in chosen.jobs}.values()  # of several attempts the last one
    jobs = [job for job in last if name in (job.label, step_label(job.step))]
    if not jobs:
        known = list(dict.fromkeys(job.step.strip("/") for job in chosen.jobs))
        of_step = [job.label for job in last if step_label(job.step) == name.rpartition(".")[0]]
        known = of_step or known
        raise UserInputError(
            f"run {chosen.run_id} has no {'such job' if of_step else 'job of this step'}.",
            seen=step,
            expected=f"one of {_few(known) or 'none: it had no jobs'}",
            do=closest(name, known) or "correct the name, or name another run with --run",
        )
    earlier = ordered[: ordered.index(chosen)]
    return [_why(chosen, job, [each for each in reversed(earlier) if each.workflow == chosen.workflow]) for job in jobs]


def _few(names: Sequence[str]) -> str:
    """All of a few names, else the first and the last ones."""
    return ", ".join(names if len(names) <= MOST_NAMES else (*names[:3], "…", names[-1]))


def _why(run: Run, job: Job, earlier: Sequence[Run]) -> Why:
    """Args: earlier: runs of the same workflow, the last one first."""
    before = next(
        ((each, other) for each in earlier for other in each.jobs if other.name == job.name and other.parts), None
    )
    changed = changes(before[1].parts, job.parts) if before and job.parts else ()
    return Why(
        run=run.run_id,
        job=job.label,
        state=job.state,
        reused_from=job.reused_from,
        compared_with=before[0].run_id if before and job.parts else "",
        changed=changed,
        why=_sentence(job, before[0].run_id if before else "", changed),
    )


def _sentence(job: Job, compared_with: str, changed: Sequence[str]) -> str:
    if job.reused_from:
        return f"not run again: nothing has changed since run {job.reused_from} did it"
    if job.not_reusable:
        return f"run: {job.not_reusable}"
    if not job.parts:
        return f"run: {_NOT_LOOKED_UP}" if job.started_s is not None else "not run: the run ended before"
    if not compared_with:
        return "run: no earlier run of this folder has done it"
    if changed:
        return f"run: since run {compared_with} another {listed(changed)}"
    return f"run: nothing has changed since run {compared_with}, whose outputs were not kept (it failed, or they made room)"
