"""What happened, in a crate: the run, its jobs where and when, how each ended, and what it read and wrote."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from medweave.crate.classes import Classes
from medweave.crate.data import Data
from medweave.crate.description import Described
from medweave.crate.entities import Entities, fragment
from medweave.crate.hosts import HERE, Hosts, images_of
from medweave.crate.workflow import Port, Step
from medweave_core.runlog.history import Run
from medweave_core.runlog.jobs import UNFINISHED, Job

DONE, FAILED = (f"http://schema.org/{word}ActionStatus" for word in ("Completed", "Failed"))
IMAGE = "https://w3id.org/ro/terms/workflow-run#DockerImage"
STATUS = {"completed": DONE, "partial": DONE}


class Actions:
    """Puts a run into a crate.

    Args:
        hosts: their names.
        tell_hosts: whether they are told.
    """

    def __init__(
        self, entities: Entities, described: Described, data: Data, classes: Classes, hosts: Hosts, *, tell_hosts: bool
    ) -> None:
        self._entities, self._described, self._data, self._classes = entities, described, data, classes
        self._hosts, self._tells_hosts = hosts, tell_hosts
        self._steps = {step.path: step for step in described.definition.steps}

    def add(self, record: Run) -> Any:
        """The action of the run, with all that belongs to it."""
        jobs = [job for job in record.jobs if job.step in self._steps and job.started_s is not None]
        self._described.add_steps(dict.fromkeys(job.step for job in jobs))
        run = self._entities.add(
            fragment("run"), "CreateAction",
            {"name": f"Run {record.run_id}", "instrument": self._described.workflow,
             "startTime": _at(record, 0.0), "endTime": _at(record, record.seconds),
             "actionStatus": STATUS.get(record.state, FAILED), "error": _error_of_run(record),
             "object": self._given(jobs), "result": self._results(jobs)},
        )  # fmt: skip
        controls = [self._control(record, job) for job in jobs]
        engine = self._entities.software("StreamFlow", str(record.facts.get("streamflow_version", "not known")))
        engine.append_to(
            "softwareRequirements",
            self._entities.software("medweave", str(record.facts.get("medweave_version", "not known"))),
        )
        self._entities.add(
            fragment("organized"), "OrganizeAction",
            {"name": "StreamFlow runs the workflow", "instrument": engine, "object": controls, "result": run,
             "startTime": _at(record, 0.0), "endTime": _at(record, record.seconds),
             "actionStatus": STATUS.get(record.state, FAILED)},
        )  # fmt: skip
        return run

    def _control(self, record: Run, job: Job) -> Any:
        label = f"{job.label}-{job.attempt}"
        return self._entities.add(
            fragment("control", label), "ControlAction",
            {"name": f"orchestrate {job.label}", "instrument": self._described.step(self._steps[job.step]),
             "object": self._job(record, job, label), "actionStatus": STATUS.get(job.state, FAILED)},
        )  # fmt: skip

    def _job(self, record: Run, job: Job, label: str) -> Any:
        step = self._steps[job.step]
        assert job.started_s is not None, "looked after before"
        error = "" if job.state == "completed" else self._shown(job.message or _error_of_job(job))
        begun, attempt = f"{job.label} on {job.where}", f", attempt {job.attempt}" if job.attempt > 1 else ""
        ended = job.ended_s if job.ended_s is not None else record.seconds
        again = f"not done again: run {job.reused_from} did it" if job.reused_from else ""
        return self._entities.add(
            fragment("job", label), "CreateAction",
            {"name": begun + attempt, "description": again, "instrument": self._described.tool(step.tool),
             "startTime": _at(record, job.started_s), "endTime": _at(record, ended),
             "actionStatus": STATUS.get(job.state, FAILED), "error": error,
             "object": self._of(step, job.inputs, output=False), "result": self._of(step, job.outputs, output=True),
             "location": self._place(record, job), "resourceUsage": self._usage(job, label),
             "softwareRequirements": self._software(job), "containerImage": self._images(job)},
        )  # fmt: skip

    def _of(self, step: Step, ports: Mapping[str, Any], *, output: bool) -> list[Any]:
        return [
            entity
            for name, items in ports.items()
            for entity in self._data.of_port(
                name, items, self._classes.of(step.path, name), self._described.parameter(step, name, output=output)
            )
        ]

    def _given(self, jobs: Iterable[Job]) -> list[Any]:
        """What the workflow was given, as its steps have read it."""
        found: dict[str, Any] = {}
        for job in jobs:
            step = self._steps[job.step]
            for name, ports in step.sources.items():
                if len(ports) == 1 and ports[0].step == "/":
                    entity = self._described.parameter(None, ports[0].name, output=False)
                    for each in self._data.of_port(
                        ports[0].name, job.inputs.get(name, ()), self._classes.of(step.path, name), entity
                    ):
                        found[each.id] = each
        return list(found.values())

    def _results(self, jobs: Iterable[Job]) -> list[Any]:
        """What the workflow has delivered: the outputs of its steps that are its own. Of several sources, all that there are."""
        made: dict[Port, list[Any]] = {}
        for job in jobs:
            if job.state == "completed":
                for name, items in job.outputs.items():
                    made.setdefault(Port(job.step, name), []).extend(items)
        found: dict[str, Any] = {}
        for name, ports in self._described.definition.results.items():
            entity = self._described.parameter(None, name, output=True)
            for port in ports:
                classes = self._classes.of(port.step, port.name)
                for each in self._data.of_port(name, made.get(port, ()), classes, entity):
                    found[each.id] = each
        return list(found.values())

    def _place(self, record: Run, job: Job) -> Any:
        kind = (record.facts.get("deployments") or {}).get(job.deployment, "")
        words, told = [job.where], {"name": job.where, "description": f"a deployment of type {kind}" if kind else ""}
        if self._tells_hosts and job.location and job.location != HERE:
            words.append(job.location)
            told["address"] = job.location
        return self._entities.add(fragment("place", *words), "Place", told)

    def _usage(self, job: Job, label: str) -> list[Any]:
        figures = (
            ("cpuSeconds", "processor time, s", job.cpu_seconds),
            ("peakMemoryMiB", "largest resident set, MiB", job.peak_memory_mib),
            ("wallSeconds", "wall time of the command, s", job.seconds),
        )
        return [
            self._entities.add(
                fragment("usage", label, name), "PropertyValue",
                {"propertyID": f"https://w3id.org/medweave/terms#{name}", "name": text, "value": str(value)},
            )
            for name, text, value in figures
            if value is not None
        ]  # fmt: skip

    def _images(self, job: Job) -> list[Any]:
        return [
            self._entities.add(
                fragment("image", each.name, each.tag, each.sha256[:12]), "ContainerImage",
                {"name": each.name, "tag": each.tag, "sha256": each.sha256, "additionalType": {"@id": IMAGE},
                 "registry": each.registry if self._tells_hosts else ""},
            )
            for each in images_of(job.site)
        ]  # fmt: skip

    def _shown(self, text: str) -> str:
        return text if self._tells_hosts else self._hosts.without(text)

    def _software(self, job: Job) -> list[Any]:
        if job.report is None:
            return []
        told = {"medweave": job.report.medweave_version, **job.report.versions}
        return [self._entities.software(name, version) for name, version in sorted(told.items())]


def _at(record: Run, seconds: float) -> str:
    return (record.started + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def _error_of_run(record: Run) -> str:
    if record.state in STATUS:
        return ""
    failed = ", ".join(job.label for job in record.failures())
    state = "its log has no end" if record.state == UNFINISHED else record.state
    return f"{state}; failed: {failed}" if failed else state


def _error_of_job(job: Job) -> str:
    return "its end is not in the log" if job.state == UNFINISHED else job.state
