"""Which steps would be cache hits, predicted before a run from the folder of runs.

A run looks each job up by its cache key: a digest of its command, inputs, programs and place. The key is not known before the run.
The preview finds a job of an earlier run that had the same known inputs, after steps with the same outputs. If the documents of the
workflow are unchanged, the command and so the key are the same, and the cache is searched for that key.
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
from medweave.project.workflows import RoleStep
from medweave_connectors.cache.entries import CacheEntries
from medweave_connectors.cache.session import NOT_ALLOWED, SWITCH
from medweave_core.documents.cwl_model import Process
from medweave_core.runlog.history import Run
from medweave_core.runlog.job_parts import changes, listed
from medweave_core.runlog.jobs import Job

NEVER = "no earlier run has this job"
OFF = f"the cache is disabled ({SWITCH}=0)"
Work = tuple[str, str]  # cache key of a job, and the run that executed it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    """Where a step would run.

    Attributes:
        is_here: on the driver's machine.
    """

    deployment: str
    service: str | None
    is_here: bool


@dataclass(slots=True, kw_only=True)
class CachePreview:
    """Predicts cache hits, step by step in the order of execution.

    Attributes:
        files: tools that are files, by path of the step.
        places: where the steps would run, by path.
        lies_at: deployments at which inputs of the workflow are stored.
        folder: base of the job file's relative paths.
        runs: earlier runs of this workflow in the folder of runs, newest first.
    """

    flow: Flow
    files: Mapping[str, Process]
    places: Mapping[str, StepPlace]
    lies_at: Mapping[str, str]
    folder: Path
    runs: Sequence[Run]
    cache: CacheEntries
    _reused: dict[str, list[Work]] = field(default_factory=dict)
    _previews: dict[str, Reuse] = field(default_factory=dict)

    def preview(self, step: RoleStep) -> Reuse | None:
        """Return the prediction for a step, after those of its predecessors; None if it does not run."""
        if self.flow.runs(step) is False:
            self._reused[step.path] = []
            return None
        preview = self._previews[step.path] = self._preview(step)
        return preview

    def _preview(self, step: RoleStep) -> Reuse:
        tool, file = step.tool, self.files.get(step.path)
        if os.environ.get(SWITCH, "1") == "0":
            return Reuse(state="runs", why=OFF)
        if tool.kind != "CommandLineTool":
            return Reuse(state="not-known", why="the step runs a workflow or an expression, not a command-line tool")
        earlier = [(run, jobs) for run in self.runs if (jobs := _jobs(run, step.path))] if self.cache.exists else []
        if all(job.not_reusable == NOT_ALLOWED for _, jobs in earlier for job in jobs) and earlier:
            return Reuse(state="runs", why=NOT_ALLOWED)
        earlier = [(run, jobs) for run, jobs in earlier if all(job.parts for job in jobs)]
        if not earlier:
            return Reuse(state="runs", why=NEVER)
        files = {self.flow.pipeline.path, *([file.path] if file is not None else [])}
        unchanged = [(run, jobs) for run, jobs in earlier if self._is_same(run, files)]
        if not unchanged:
            why = (
                f"the workflow or its tool has been edited since run {earlier[0][0].run_id}, which may change the "
                "command"
            )
            return Reuse(state="not-known", why=why)
        ports = ports_of(step, self.flow, self.lies_at)
        return self._by_inputs(step, ports, unchanged)

    def _by_inputs(self, step: RoleStep, ports: Mapping[str, Port], earlier: Sequence[tuple[Run, list[Job]]]) -> Reuse:
        """Return the prediction from the inputs; `earlier` are jobs of the step in runs with the same documents."""
        try:
            wanted = self._wanted(step, ports)
        except OSError:
            return Reuse(state="not-known", why="an input cannot be read now")
        is_scattered = any(isinstance(port, Value) and port.is_scattered for port in ports.values())
        is_open = any(isinstance(port, Written) and port.is_scattered for port in ports.values())
        new = [
            (number, parts)
            for number, parts in enumerate(wanted)
            if not any(self._fits(step, parts, jobs) for _, jobs in earlier)
        ]
        if new:
            why = self._changed(step, earlier[0], *new[0])
            if len(new) == len(wanted):
                return Reuse(state="runs", why=why, num_jobs=len(wanted) if is_scattered else None)
        running_before = tuple(
            path for path in self.flow.after(step) if path in self._previews and self._previews[path].state != "reused"
        )
        unknown_reason = next((port.why for port in ports.values() if isinstance(port, Unseen)), "")
        if not new and (running_before or unknown_reason):
            return Reuse(state="not-known", after=running_before, why="" if running_before else unknown_reason)
        same = [
            (run, jobs)
            for run, jobs in earlier
            if not running_before and not unknown_reason and self._read_the_same(run, ports)
        ]
        if is_open and same:  # the number of jobs of an interrupted run is unknown
            same = [(run, jobs) for run, jobs in same if run.state == "completed"]
            if not same:
                return Reuse(state="not-known", why="the earlier runs ended before all jobs of the step had started")
        hits = list(self._items(step, wanted, same) if is_scattered else self._whole(step, wanted[0], same))
        if not hits:
            return self._without(step, ports, earlier)
        return self._verdict(step, hits, "" if not new else why)

    def _verdict(self, step: RoleStep, hits: Sequence[tuple[Job, str] | None], why: str) -> Reuse:
        """Return the prediction for a step.

        Args:
            hits: for each job, the earlier job with its key and the run that executed it; None without such a job.
        """
        if any(hit is not None and not hit[0].work for hit in hits):
            return Reuse(state="not-known", why="an older version of medweave wrote the event log of the earlier run")
        reused = [(hit[0].work, hit[1]) for hit in hits if hit is not None and hit[1]]
        from_runs = tuple(dict.fromkeys(run for _, run in reused))
        place = self.places[step.path]
        unless = None if place.is_here or not reused else place.deployment
        if len(reused) == len(hits):
            self._reused[step.path] = reused
        return Reuse(
            state="reused" if len(reused) == len(hits) else "runs",
            from_runs=from_runs,
            num_jobs=len(hits),
            num_reused=len(reused),
            unless=unless,
            why="" if len(reused) == len(hits) else why or "an output is no longer in the cache",
        )

    def _without(self, step: RoleStep, ports: Mapping[str, Port], earlier: Sequence[tuple[Run, list[Job]]]) -> Reuse:
        """Return the prediction if no earlier run had these outputs of its predecessors."""
        differing = [self._other_content(ports, jobs) for _, jobs in earlier]
        if all(differing):
            return Reuse(state="runs", why=f"changed since run {earlier[0][0].run_id}: {listed(differing[0])}")
        steps = [
            path
            for port in ports.values()
            if isinstance(port, Written)
            for path in port.steps
            if path in self._previews
        ]
        names = listed([path.lstrip("/") for path in dict.fromkeys(steps)])
        return Reuse(
            state="not-known",
            why=f"no earlier run had these outputs of {names} as inputs, but the content may be equal",
        )

    # ---- parts of the cache key

    def _wanted(self, step: RoleStep, ports: Mapping[str, Port]) -> list[dict[str, str]]:
        """Return the parts of the cache key that are known now: one mapping per job of a scatter, else one."""
        place = self.places[step.path]
        program = _program(step.tool)
        parts = dict([self.cache.processor_part()]) if place.is_here else {}
        if place.is_here and program:
            parts |= [self.cache.programs_part(program)]
        over: list[list[tuple[str, str]]] = []
        for name, port in ports.items():
            if isinstance(port, Value) and port.is_scattered and isinstance(port.value, list):
                over.append([self._part(name, port, item, place) for item in port.value])
            elif isinstance(port, Value):
                parts |= [self._part(name, port, port.value, place)]
        return [parts | dict(items) for items in zip(*over, strict=False)] if over else [parts]

    def _part(self, name: str, port: Value, value: Any, place: StepPlace) -> tuple[str, str]:
        return self.cache.input_part(
            name, value, source=port.source or name, folder=str(self.folder), at_site=not place.is_here
        )

    def _fits(self, step: RoleStep, wanted: Mapping[str, str], jobs: Sequence[Job]) -> Job | None:
        place = self.places[step.path]
        return next(
            (
                job
                for job in jobs
                if (job.deployment, job.service) == (place.deployment, place.service)
                or (place.is_here and "processor" in job.parts)
                if all(job.parts[name] == digest for name, digest in wanted.items() if name in job.parts)
            ),
            None,
        )

    def _changed(self, step: RoleStep, last: tuple[Run, Sequence[Job]], number: int, wanted: Mapping[str, str]) -> str:
        run, jobs = last
        job, place = jobs[min(number, len(jobs) - 1)], self.places[step.path]
        now = {name: wanted.get(name, digest) for name, digest in job.parts.items()}
        names = changes(job.parts, now)
        if not names and (job.deployment, job.service) != (place.deployment, place.service):
            names = ("place",)
        return (
            f"changed since run {run.run_id}: {listed(names)}"
            if names
            else f"run {run.run_id} has no job with these inputs"
        )

    # ---- outputs of the predecessors

    def _read_the_same(self, run: Run, ports: Mapping[str, Port]) -> bool:
        """Return whether the predecessors had the same outputs in a run."""
        return all(
            self._reused.get(path, []) == [(job.work, job.reused_from or run.run_id) for job in _jobs(run, path)]
            for port in ports.values()
            if isinstance(port, Written)
            for path in port.steps
        )

    def _other_content(self, ports: Mapping[str, Port], jobs: Sequence[Job]) -> list[str]:
        """Return the inputs that certainly had another content in a run."""
        changed = []
        for name, port in ports.items():
            if isinstance(port, Written) and not port.is_scattered and len(port.sources) == 1:
                now = self._content(port.sources[0])
                then = [item.get("sha256") for item in jobs[0].inputs.get(name, ())]
                if now and then and all(now) and all(then) and now != then:
                    changed.append(f"input {name}")
        return changed

    def _content(self, source: str) -> list[Any]:
        """Return the digests of a reused output; None for one that is unknown."""
        name, _, output = source.partition("/")
        digests: list[Any] = []
        for key, run_id in self._reused.get(f"/{name}", []):
            jobs = [job for run in self.runs if run.run_id == run_id for job in run.jobs if job.work == key]
            digests += [item.get("sha256") for item in jobs[-1].outputs.get(output, ())] if jobs else [None]
        return digests

    # ---- the jobs

    def _whole(
        self, step: RoleStep, wanted: Mapping[str, str], earlier: Sequence[tuple[Run, list[Job]]]
    ) -> list[tuple[Job, str] | None]:
        """Return all jobs of the step in the run with the most cache hits."""
        candidates = [jobs for _, jobs in earlier if all(self._fits(step, wanted, [job]) for job in jobs)]
        hits = [[(job, self.cache.find_run(job.work)) for job in jobs] for jobs in candidates]
        most = max(hits, key=lambda run_hits: sum(bool(run) for _, run in run_hits), default=[])
        return [*most]

    def _items(
        self, step: RoleStep, wanted: Sequence[Mapping[str, str]], earlier: Sequence[tuple[Run, list[Job]]]
    ) -> Iterator[tuple[Job, str] | None]:
        """Yield for each item of a scatter a job of any run."""
        for parts in wanted:
            jobs = [job for _, jobs in earlier if (job := self._fits(step, parts, jobs)) is not None]
            hits = [(job, self.cache.find_run(job.work)) for job in jobs]
            yield next((hit for hit in hits if hit[1]), hits[0] if hits else None)

    def _is_same(self, run: Run, files: Iterable[Path]) -> bool:
        digests = run.facts.get("documents") or {}
        names = {os.path.relpath(path, self.flow.pipeline.path.parent): path for path in files}
        return all(digests.get(name) == hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items())


def _jobs(run: Run, step: str) -> list[Job]:
    """Return the last attempt of each job of a step, in the order of a scatter."""
    last = {job.name: job for job in run.jobs if job.step == step}
    return sorted(
        last.values(), key=lambda job: [int(number) for number in re.findall(r"\d+", job.name.rpartition("/")[2])]
    )


def _program(tool: Process) -> str:
    command = tool.fields.get("baseCommand") or ""
    return command if isinstance(command, str) else str(command[0])
