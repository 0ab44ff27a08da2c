"""`medweave explain STEP`: explain why each job of a step ran or was a cache hit, by what changed since earlier runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from medweave.runs.listing import add_runs_option, folders_of
from medweave_core.contracts.events import step_label
from medweave_core.documents.closest_match import closest
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import Run, read_runs
from medweave_core.runlog.job_parts import changes, listed
from medweave_core.runlog.jobs import Job

DESCRIPTION = """\
Explain for each job of a step why it ran or was a cache hit: which input, parameter or program changed since the
earlier run. The command reads the event logs of the runs. The logs contain no values, so the output names what
changed without showing the values."""
EPILOG = """\
examples:
  medweave explain segment                 all jobs of step segment in the latest run
  medweave explain segment.3               one job of a scattered step
  medweave explain train --run lung-20260827-101500-3f2a

exit codes:
  0   explanation printed
  2   wrong usage
  65  no such run or step"""
COMMAND = "command"  # part of the cache key that usually changes together with an input
MOST_NAMES = 12
MOST_ROWS = 20  # of jobs with the same explanation
_NOT_LOOKED_UP = (
    "the cache was not used: it is disabled (MEDWEAVE_REUSE, reuse_gib, storeGiB), or a connector or the data "
    "manager is not from medweave"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """Why one job ran or was a cache hit.

    Attributes:
        run, job, state: the run's id, the job's label, and how the job ended.
        reused_from: the run whose outputs were reused; empty if the command ran.
        compared_with: the earlier run that `changed` refers to; empty without an earlier run.
        changed: parts of the cache key that differ from that run.
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
    """Add the arguments of `medweave explain`."""
    parser.add_argument("step", metavar="STEP", help="step, or one job of a scattered step (segment.3)")
    parser.add_argument("--run", metavar="RUN", help="run id or run folder (default: the latest run)")
    add_runs_option(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of text")


def run(namespace: argparse.Namespace) -> int:
    """Print one explanation per job.

    Raises:
        UserInputError: no such run, or no such step in it.
    """
    folder: Path = namespace.runs
    if namespace.run and len(Path(namespace.run).parts) > 1:
        folder = Path(namespace.run).parent
    folders_of(folder)  # raises if the folder has no runs
    explanations = explain(read_runs(folder), namespace.step, Path(namespace.run).name if namespace.run else "")
    if namespace.json:
        print(json.dumps([asdict(explanation) for explanation in explanations], indent=2))
        return 0
    print(f"Run {explanations[0].run}")
    rows = _rows(explanations)
    width = max(len(jobs) for jobs, _ in rows)
    for jobs, why in rows:
        print(f"  {jobs:<{width}}  {why}")
    return 0


def _rows(explanations: Sequence[JobExplanation]) -> list[tuple[str, str]]:
    """Return (jobs, sentence) per line: one job each, or all jobs with the same sentence if they are many."""
    jobs_of: dict[str, list[str]] = {}
    for explanation in explanations:
        jobs_of.setdefault(explanation.why, []).append(explanation.job)
    rows = []
    for why, jobs in jobs_of.items():
        if len(jobs) > MOST_ROWS:
            rows.append((f"{len(jobs):,} jobs ({_few(jobs)})", why))
        else:
            rows += [(job, why) for job in jobs]
    return rows


def explain(runs: Sequence[Run], step: str, run_id: str = "") -> list[JobExplanation]:
    """Return why each job of a step ran or was a cache hit.

    Args:
        runs: all runs of the folder, in any order.
        step: its name or path, or the label of one job.
        run_id: id of the run to explain; empty for the latest one.

    Raises:
        UserInputError: there is no such run, or no such step in it.
    """
    ordered = sorted(runs, key=lambda run: run.started)
    chosen = next((run for run in reversed(ordered) if run_id in ("", run.run_id)), None)
    if chosen is None:
        raise UserInputError(
            "no such run.",
            seen=run_id or "a folder without runs",
            expected=", ".join(run.run_id for run in ordered[-3:]) or "a folder of runs with event logs",
            do=closest(run_id, [run.run_id for run in ordered])
            or "choose a run of this folder with --run, or another folder with --runs",
        )
    name = step_label(step)
    last = {job.name: job for job in chosen.jobs}.values()  # the last attempt of each job
    jobs = [job for job in last if name in (job.label, step_label(job.step))]
    if not jobs:
        known = list(dict.fromkeys(job.step.strip("/") for job in chosen.jobs))
        of_step = [job.label for job in last if step_label(job.step) == name.rpartition(".")[0]]
        known = of_step or known
        raise UserInputError(
            f"run {chosen.run_id} has no {'such job' if of_step else 'job of this step'}.",
            seen=step,
            expected=f"one of {_few(known) or 'none: it had no jobs'}",
            do=closest(name, known) or "correct the name, or choose another run with --run",
        )
    earlier = [run for run in reversed(ordered[: ordered.index(chosen)]) if run.workflow == chosen.workflow]
    with_parts = [(run.run_id, {job.name: job.parts for job in reversed(run.jobs) if job.parts}) for run in earlier]
    return [_explain(chosen, job, with_parts) for job in jobs]


def _few(names: Sequence[str]) -> str:
    """Return the names as one text; only the first and last ones of a long list."""
    return ", ".join(names if len(names) <= MOST_NAMES else (*names[:3], "…", names[-1]))


def _explain(run: Run, job: Job, earlier: Sequence[tuple[str, Mapping[str, Mapping[str, str]]]]) -> JobExplanation:
    """Return why one job ran or was a cache hit.

    Args:
        earlier: (run id, parts of the cache key by job) of runs of the same workflow, the latest first.
    """
    run_id, parts = next(((run_id, jobs[job.name]) for run_id, jobs in earlier if job.name in jobs), ("", {}))
    changed = changes(parts, job.parts) if parts and job.parts else ()
    return JobExplanation(
        run=run.run_id,
        job=job.label,
        state=job.state,
        reused_from=job.reused_from,
        compared_with=run_id if job.parts else "",
        changed=changed,
        why=_sentence(job, run_id, changed),
    )


def _sentence(job: Job, compared_with: str, changed: Sequence[str]) -> str:
    if job.reused_from:
        return f"cache hit: nothing has changed since run {job.reused_from}"
    if job.not_reusable:
        return f"ran: {job.not_reusable}"
    if not job.parts:
        return f"ran: {_NOT_LOOKED_UP}" if job.started_s is not None else "not run: the run ended first"
    if not compared_with:
        return "ran: no earlier run in this folder has this job"
    if changed:
        return f"ran: changed since run {compared_with}: {listed(changed)}"
    missing = "but its outputs are not in the cache (the job failed, or they were evicted)"
    return f"ran: nothing has changed since run {compared_with}, {missing}"
