"""Which steps would get what an earlier run has written: told before a run, by what its folder of runs keeps.

A run asks for each job by its key: a digest of its command, inputs, programs and place. Here a job of an earlier run is looked for
that had the inputs that are known now, and in whose run the steps before it did what they would give now. With the documents of the
workflow unchanged, its command is the same then, and so is its key; what is kept under that is asked as a run asks it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave.plan.document import Reuse
from medweave.plan.flow import Flow
from medweave.plan.ports import Port, Unseen, Value, Written, ports_of
from medweave.project.workflows import Step
from medweave_connectors.cache.entries import Kept
from medweave_connectors.cache.session import NOT_ALLOWED, SWITCH
from medweave_core.documents.cwl_model import Process
from medweave_core.runlog.history import Run
from medweave_core.runlog.job_parts import changes, listed
from medweave_core.runlog.jobs import Job

NEVER = "no earlier run has done it"
OFF = f"reuse is switched off ({SWITCH}=0)"
Work = tuple[str, str]  # a job's key, and the run that has done it


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a step would run.

    Attributes:
        here: on the machine that drives the run.
    """

    deployment: str
    service: str | None
    here: bool


@dataclass(slots=True, kw_only=True)
class Foresight:
    """Tells it of one step after the other, in the order in which they run.

    Attributes:
        runs: of the folder of runs, of this workflow, the last one first.
        files: processes in files of their own, by path of the step.
        spots: the same, where they would run.
        lies_at: deployments at which inputs of the workflow lie.
        folder: where the job file's relative paths start.
    """

    flow: Flow
    files: Mapping[str, Process]
    spots: Mapping[str, Spot]
    lies_at: Mapping[str, str]
    folder: Path
    runs: Sequence[Run]
    kept: Kept
    _works: dict[str, list[Work]] = field(default_factory=dict)
    _told: dict[str, Reuse] = field(default_factory=dict)

    def of(self, step: Step) -> Reuse | None:
        """Of a step whose predecessors were asked for before; None where it does not run."""
        if self.flow.runs(step) is False:
            self._works[step.path] = []
            return None
        told = self._told[step.path] = self._of(step)
        return told

    def _of(self, step: Step) -> Reuse:
        tool, file = step.tool, self.files.get(step.path)
        if os.environ.get(SWITCH, "1") == "0":
            return Reuse(state="runs", why=OFF)
        if tool.kind != "CommandLineTool":
            return Reuse(state="not-known", why="it runs no tool but a workflow or an expression")
        earlier = [(run, jobs) for run in self.runs if (jobs := _jobs(run, step.path))] if self.kept.there else []
        if all(job.not_reusable == NOT_ALLOWED for _, jobs in earlier for job in jobs) and earlier:
            return Reuse(state="runs", why=NOT_ALLOWED)
        earlier = [(run, jobs) for run, jobs in earlier if all(job.parts for job in jobs)]
        if not earlier:
            return Reuse(state="runs", why=NEVER)
        files = {self.flow.pipeline.path, *([file.path] if file is not None else [])}
        same = [(run, jobs) for run, jobs in earlier if self._is_same(run, files)]
        if not same:
            why = f"the workflow or its tool has been edited since run {earlier[0][0].run_id}, which may change its command"
            return Reuse(state="not-known", why=why)
        ports = ports_of(step, self.flow, self.lies_at)
        return self._by(step, ports, same)

    def _by(self, step: Step, ports: Mapping[str, Port], earlier: Sequence[tuple[Run, list[Job]]]) -> Reuse:
        """Args: earlier: jobs of the step, by runs whose documents were these."""
        try:
            wanted = self._wanted(step, ports)
        except OSError:
            return Reuse(state="not-known", why="something that it reads cannot be read now")
        is_scattered = any(isinstance(port, Value) and port.each for port in ports.values())
        is_open = any(isinstance(port, Written) and port.each for port in ports.values())
        new = [
            (number, want)
            for number, want in enumerate(wanted)
            if not any(self._fits(step, want, jobs) for _, jobs in earlier)
        ]
        if new:
            why = self._changed(step, earlier[0], *new[0])
            if len(new) == len(wanted):
                return Reuse(state="runs", why=why, num_jobs=len(wanted) if is_scattered else None)
        waits = tuple(
            path for path in self.flow.after(step) if path in self._told and self._told[path].state != "reused"
        )
        unseen = next((port.why for port in ports.values() if isinstance(port, Unseen)), "")
        if not new and (waits or unseen):
            return Reuse(state="not-known", after=waits, why="" if waits else unseen)
        same = [(run, jobs) for run, jobs in earlier if not waits and not unseen and self._read_the_same(run, ports)]
        if is_open and same:  # of a run that ended before, nobody knows how many jobs it would have had
            same = [(run, jobs) for run, jobs in same if run.state == "completed"]
            if not same:
                return Reuse(state="not-known", why="the runs that did it ended before all of its jobs had begun")
        found = list(self._items(step, wanted, same) if is_scattered else self._whole(step, wanted[0], same))
        if not found:
            return self._without(step, ports, earlier)
        return self._judged(step, found, "" if not new else why)

    def _judged(self, step: Step, found: Sequence[tuple[Job, str] | None], why: str) -> Reuse:
        """Args: found: each job of an earlier run that had the key, and the run that has done it; None for none."""
        if any(each is not None and not each[0].work for each in found):
            return Reuse(state="not-known", why="an older version of medweave wrote the log of the run that did it")
        works = [(each[0].work, each[1]) for each in found if each is not None and each[1]]
        from_runs = tuple(dict.fromkeys(run for _, run in works))
        spot = self.spots[step.path]
        unless = None if spot.here or not works else spot.deployment
        if len(works) == len(found):
            self._works[step.path] = works
        return Reuse(
            state="reused" if len(works) == len(found) else "runs",
            from_runs=from_runs,
            num_jobs=len(found),
            num_reused=len(works),
            unless=unless,
            why="" if len(works) == len(found) else why or "what was kept of it is not there any more",
        )

    def _without(self, step: Step, ports: Mapping[str, Port], earlier: Sequence[tuple[Run, list[Job]]]) -> Reuse:
        """No earlier run had these outputs of the steps before it."""
        differing = [self._other_content(ports, jobs) for _, jobs in earlier]
        if all(differing):
            return Reuse(state="runs", why=f"since run {earlier[0][0].run_id} another {listed(differing[0])}")
        before = [
            path for port in ports.values() if isinstance(port, Written) for path in port.steps if path in self._told
        ]
        names = listed([path.lstrip("/") for path in dict.fromkeys(before)])
        return Reuse(
            state="not-known", why=f"no earlier run gave it these outputs of {names}, which may be equal to others"
        )

    # ---- what a job would be made of

    def _wanted(self, step: Step, ports: Mapping[str, Port]) -> list[dict[str, str]]:
        """Those parts of its jobs that are known now: one mapping, or one for each item that the step is scattered over."""
        spot = self.spots[step.path]
        program = _program(step.tool)
        parts = dict([self.kept.processor_part()]) if spot.here else {}
        if spot.here and program:
            parts |= [self.kept.programs_part(program)]
        over: list[list[tuple[str, str]]] = []
        for name, port in ports.items():
            if isinstance(port, Value) and port.each and isinstance(port.value, list):
                over.append([self._part(name, port, item, spot) for item in port.value])
            elif isinstance(port, Value):
                parts |= [self._part(name, port, port.value, spot)]
        return [parts | dict(items) for items in zip(*over, strict=False)] if over else [parts]

    def _part(self, name: str, port: Value, value: Any, spot: Spot) -> tuple[str, str]:
        return self.kept.input_part(
            name, value, source=port.source or name, folder=str(self.folder), at_site=not spot.here
        )

    def _fits(self, step: Step, wanted: Mapping[str, str], jobs: Sequence[Job]) -> Job | None:
        spot = self.spots[step.path]
        return next(
            (
                job
                for job in jobs
                if (job.deployment, job.service) == (spot.deployment, spot.service)
                or (spot.here and "processor" in job.parts)
                if all(job.parts[name] == digest for name, digest in wanted.items() if name in job.parts)
            ),
            None,
        )

    def _changed(self, step: Step, last: tuple[Run, Sequence[Job]], number: int, wanted: Mapping[str, str]) -> str:
        run, jobs = last
        job, spot = jobs[min(number, len(jobs) - 1)], self.spots[step.path]
        now = {name: wanted.get(name, digest) for name, digest in job.parts.items()}
        names = changes(job.parts, now)
        if not names and (job.deployment, job.service) != (spot.deployment, spot.service):
            names = ("place",)
        return f"since run {run.run_id} another {listed(names)}" if names else f"run {run.run_id} did not do it so"

    # ---- what the steps before it give

    def _read_the_same(self, run: Run, ports: Mapping[str, Port]) -> bool:
        """Whether in that run the steps before did what they would give now."""
        return all(
            self._works.get(path, []) == [(job.work, job.reused_from or run.run_id) for job in _jobs(run, path)]
            for port in ports.values()
            if isinstance(port, Written)
            for path in port.steps
        )

    def _other_content(self, ports: Mapping[str, Port], jobs: Sequence[Job]) -> list[str]:
        """The inputs that surely had another content in a run."""
        found = []
        for name, port in ports.items():
            if isinstance(port, Written) and not port.each and len(port.sources) == 1:
                now = self._content(port.sources[0])
                then = [item.get("sha256") for item in jobs[0].inputs.get(name, ())]
                if now and then and all(now) and all(then) and now != then:
                    found.append(f"input {name}")
        return found

    def _content(self, source: str) -> list[Any]:
        """Digests of what a step has written that would be reused; None for what is not known."""
        name, _, output = source.partition("/")
        found: list[Any] = []
        for work, run_id in self._works.get(f"/{name}", []):
            jobs = [job for run in self.runs if run.run_id == run_id for job in run.jobs if job.work == work]
            found += [item.get("sha256") for item in jobs[-1].outputs.get(output, ())] if jobs else [None]
        return found

    # ---- the jobs

    def _whole(
        self, step: Step, wanted: Mapping[str, str], earlier: Sequence[tuple[Run, list[Job]]]
    ) -> list[tuple[Job, str] | None]:
        """All jobs of the step in that run which keeps most of them."""
        alike = [jobs for _, jobs in earlier if all(self._fits(step, wanted, [job]) for job in jobs)]
        kept = [[(job, self.kept.run_of(job.work)) for job in jobs] for jobs in alike]
        most = max(kept, key=lambda found: sum(bool(run) for _, run in found), default=[])
        return [*most]

    def _items(
        self, step: Step, wanted: Sequence[Mapping[str, str]], earlier: Sequence[tuple[Run, list[Job]]]
    ) -> Iterator[tuple[Job, str] | None]:
        """For each item a job of any run."""
        for want in wanted:
            jobs = [job for _, jobs in earlier if (job := self._fits(step, want, jobs)) is not None]
            kept = [(job, self.kept.run_of(job.work)) for job in jobs]
            yield next((each for each in kept if each[1]), kept[0] if kept else None)

    def _is_same(self, run: Run, files: Iterable[Path]) -> bool:
        told = run.facts.get("documents") or {}
        names = {os.path.relpath(path, self.flow.pipeline.path.parent): path for path in files}
        return all(told.get(name) == hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items())


def _jobs(run: Run, step: str) -> list[Job]:
    """The last attempt at each job of a step, in the order of a scatter."""
    last = {job.name: job for job in run.jobs if job.step == step}
    return sorted(
        last.values(), key=lambda job: [int(each) for each in re.findall(r"\d+", job.name.rpartition("/")[2])]
    )


def _program(tool: Process) -> str:
    command = tool.fields.get("baseCommand") or ""
    return command if isinstance(command, str) else str(command[0])
