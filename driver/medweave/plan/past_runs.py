"""Figures of earlier runs of a workflow: time of its steps at a place, and transferred bytes. Reads event logs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from medweave import DRIVER_TYPE
from medweave.plan.document import Figures
from medweave.report.energy import Model, energy_wh, total
from medweave_core.runlog.engine_names import HERE
from medweave_core.runlog.history import Run, read_runs
from medweave_core.runlog.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Earlier runs of one workflow.

    Attributes:
        looked_in: folders of runs.
    """

    runs: Sequence[Run]
    looked_in: Sequence[Path]

    def job_seconds(self, step: str, where: tuple[str, str | None]) -> Figures | None:
        """Return the wall time of one completed job of a step at a deployment and service, in s: the median of each run."""
        return self._of_jobs(step, where, lambda job, _: job.duration_s)

    def job_wh(self, step: str, where: tuple[str, str | None]) -> Figures | None:
        """Return the energy of one job in Wh, as `medweave report` estimates it."""
        return self._of_jobs(step, where, lambda job, run: energy_wh(job, run.facts.get("deployments") or {}, Model()))

    def hours(self, step: str, where: tuple[str, str | None], amount: float) -> Figures | None:
        """Return the hours of one unit of a resource that all jobs of a step together used, per run.

        Args:
            amount: units that a job has.
        """
        return self._of_jobs(
            step, where, lambda job, _: None if job.duration_s is None else job.duration_s * amount / 3600, together=sum
        )

    def _of_jobs(
        self,
        step: str,
        where: tuple[str, str | None],
        value: Callable[[Job, Run], float | None],
        *,
        together: Callable[[Sequence[float]], float] = statistics.median,
    ) -> Figures | None:
        per_run = []
        for run in self.runs:
            values = [
                value(job, run)
                for job in run.jobs
                if job.step == step
                and (job.deployment, job.service) == where
                and job.state == "completed"
                and not job.reused_from
            ]
            if known := [number for number in values if number is not None]:
                per_run.append(together(known))
        return figures(per_run)

    def seconds(self, places: Mapping[str, tuple[str, str | None]]) -> Figures | None:
        """Return the wall time of completed runs with exactly these steps at these places, in s."""
        return figures(run.seconds for run in self._alike(places))

    def wh(self, places: Mapping[str, tuple[str, str | None]]) -> Figures | None:
        """Return the energy of such runs in Wh; runs with an unknown part are left out."""
        sums = [
            total(energy_wh(job, run.facts.get("deployments") or {}, Model()) for job in run.jobs)
            for run in self._alike(places)
        ]
        return figures(wh for wh, num_unknown in sums if not num_unknown)

    def _alike(self, places: Mapping[str, tuple[str, str | None]]) -> Iterator[Run]:
        for run in self.runs:
            if (
                run.state == "completed"
                and not any(job.reused_from for job in run.jobs)
                and {job.step for job in run.jobs} == set(places)
                and all((job.deployment, job.service) == places[job.step] for job in run.jobs)
            ):
                yield run

    def moved(self, source: str | None, destination: str | None) -> tuple[Figures | None, tuple[str, ...]]:
        """Return the bytes that completed runs sent from one place to another, and the routes; None is the driver's machine."""
        sums, routes = [], {}
        for run in self.runs:
            if run.state != "completed":
                continue
            transfers = [
                transfer
                for transfer in run.transfers
                if (_place(transfer.source, run), _place(transfer.destination, run)) == (source, destination)
            ]
            if transfers:
                sums.append(float(sum(transfer.num_bytes for transfer in transfers)))
                routes.update(dict.fromkeys(transfer.route for transfer in transfers))
        return figures(sums), tuple(routes)


def read_past(folders: Iterable[Path], workflow: Path) -> Past:
    """Return the runs of a workflow in some folders of runs."""
    folders = list(folders)
    runs = [run for folder in folders for run in read_runs(folder) if is_of(run, workflow)]
    return Past(runs=runs, looked_in=folders)


def is_of(run: Run, workflow: Path) -> bool:
    """Return whether a run is of a workflow, by its folder and name: runs may come from another checkout."""
    # Only a name, if the workflow is in the folder of the StreamFlow file.
    recorded = PurePath(str(run.facts.get("workflow_file", ""))).parts[-2:]
    return bool(recorded) and recorded == workflow.parts[-len(recorded) :]


def figures(values: Iterable[float]) -> Figures | None:
    """Return median and range; None if there is no value."""
    numbers = list(values)
    if not numbers:
        return None
    return Figures(num_runs=len(numbers), median=statistics.median(numbers), low=min(numbers), high=max(numbers))


def _place(deployment: str, run: Run) -> str | None:
    is_here = deployment == HERE or (run.facts.get("deployments") or {}).get(deployment) == DRIVER_TYPE
    return None if is_here else deployment
