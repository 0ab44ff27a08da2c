"""What earlier runs of a workflow tell: how long its steps took at a place, and what moved. Reads event logs."""

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
        """Wall time of one job of a step at a deployment and service, s: of each run, the median of its jobs that did well."""
        return self._of_jobs(step, where, lambda job, _: job.duration_s)

    def job_wh(self, step: str, where: tuple[str, str | None]) -> Figures | None:
        """The same of the electricity that it took, Wh, as `medweave report` estimates it."""
        return self._of_jobs(step, where, lambda job, run: energy_wh(job, run.facts.get("deployments") or {}, Model()))

    def hours(self, step: str, where: tuple[str, str | None], held: float) -> Figures | None:
        """What all jobs of a step together held of a resource, in hours of one of it; of each run.

        Args:
            held: how many of it a job holds.
        """
        return self._of_jobs(
            step, where, lambda job, _: None if job.duration_s is None else job.duration_s * held / 3600, together=sum
        )

    def _of_jobs(
        self,
        step: str,
        where: tuple[str, str | None],
        value: Callable[[Job, Run], float | None],
        *,
        together: Callable[[Sequence[float]], float] = statistics.median,
    ) -> Figures | None:
        found = []
        for run in self.runs:
            values = [
                value(job, run)
                for job in run.jobs
                if job.step == step
                and (job.deployment, job.service) == where
                and job.state == "completed"
                and not job.reused_from
            ]
            if known := [each for each in values if each is not None]:
                found.append(together(known))
        return figures(found)

    def seconds(self, places: Mapping[str, tuple[str, str | None]]) -> Figures | None:
        """Wall time of the runs that did well with exactly these steps at these places, s."""
        return figures(run.seconds for run in self._alike(places))

    def wh(self, places: Mapping[str, tuple[str, str | None]]) -> Figures | None:
        """The electricity that such runs took, Wh; of those of which all is known."""
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
        """Bytes that completed runs sent from one place to another, and by which routes; None is the driver's machine."""
        sums, routes = [], {}
        for run in self.runs:
            if run.state != "completed":
                continue
            of_pair = [
                each
                for each in run.transfers
                if (_place(each.source, run), _place(each.destination, run)) == (source, destination)
            ]
            if of_pair:
                sums.append(float(sum(each.num_bytes for each in of_pair)))
                routes.update(dict.fromkeys(each.route for each in of_pair))
        return figures(sums), tuple(routes)


def read_past(folders: Iterable[Path], workflow: Path) -> Past:
    """The runs of a workflow in some folders of runs."""
    folders = list(folders)
    found = [run for folder in folders for run in read_runs(folder) if is_of(run, workflow)]
    return Past(runs=found, looked_in=folders)


def is_of(run: Run, workflow: Path) -> bool:
    """Whether a run is of a workflow: by folder and name, for runs may have been carried here from another checkout."""
    told = PurePath(str(run.facts.get("workflow_file", ""))).parts[
        -2:
    ]  # the name alone, of one beside the file that was run
    return bool(told) and told == workflow.parts[-len(told) :]


def figures(values: Iterable[float]) -> Figures | None:
    """Median and range; None of nothing."""
    listed = list(values)
    if not listed:
        return None
    return Figures(num_runs=len(listed), median=statistics.median(listed), low=min(listed), high=max(listed))


def _place(deployment: str, run: Run) -> str | None:
    is_here = deployment == HERE or (run.facts.get("deployments") or {}).get(deployment) == DRIVER_TYPE
    return None if is_here else deployment
