"""Actions in a crate: the run and its jobs, with place, times, state, inputs and outputs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from medweave.crate.classes import PortClasses
from medweave.crate.data import Data
from medweave.crate.description import WorkflowEntities
from medweave.crate.entities import Entities, fragment
from medweave.crate.hosts import HERE, Hosts, images_of
from medweave.crate.workflow import CrateStep, FormalPort
from medweave_core.runlog.history import Run
from medweave_core.runlog.jobs import UNFINISHED, Job

DONE, FAILED = (f"http://schema.org/{word}ActionStatus" for word in ("Completed", "Failed"))
IMAGE = "https://w3id.org/ro/terms/workflow-run#DockerImage"
STATUS = {"completed": DONE, "partial": DONE}


class Actions:
    """Adds a run to a crate.

    Args:
        hosts: names of hosts.
        with_hosts: whether these names are included.
    """

    def __init__(
        self,
        entities: Entities,
        workflow_entities: WorkflowEntities,
        data: Data,
        classes: PortClasses,
        hosts: Hosts,
        *,
        with_hosts: bool,
    ) -> None:
        self._entities, self._workflow_entities, self._data, self._classes = entities, workflow_entities, data, classes
        self._hosts, self._with_hosts = hosts, with_hosts
        self._steps = {step.path: step for step in workflow_entities.definition.steps}

    def add(self, record: Run) -> Any:
        """Return the action of the run, after adding its jobs, inputs and outputs."""
        jobs = [job for job in record.jobs if job.step in self._steps and job.started_s is not None]
        self._workflow_entities.add_steps(dict.fromkeys(job.step for job in jobs))
        run = self._entities.add(
            fragment("run"), "CreateAction",
            {"name": f"Run {record.run_id}", "instrument": self._workflow_entities.workflow,
             "startTime": _at(record, 0.0), "endTime": _at(record, record.seconds),
             "actionStatus": STATUS.get(record.state, FAILED), "error": _error_of_run(record),
             "object": self._run_inputs(jobs), "result": self._results(jobs)},
        )  # fmt: skip
        controls = [self._control(record, job) for job in jobs]
        engine = self._entities.software("StreamFlow", str(record.facts.get("streamflow_version", "unknown")))
        engine.append_to(
            "softwareRequirements",
            self._entities.software("medweave", str(record.facts.get("medweave_version", "unknown"))),
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
            {"name": f"orchestrate {job.label}", "instrument": self._workflow_entities.step(self._steps[job.step]),
             "object": self._job(record, job, label), "actionStatus": STATUS.get(job.state, FAILED)},
        )  # fmt: skip

    def _job(self, record: Run, job: Job, label: str) -> Any:
        step = self._steps[job.step]
        assert job.started_s is not None, "add() selects jobs that started"
        error = "" if job.state == "completed" else self._shown(job.message or _error_of_job(job))
        begun, attempt = f"{job.label} on {job.where}", f", attempt {job.attempt}" if job.attempt > 1 else ""
        ended = job.ended_s if job.ended_s is not None else record.seconds
        again = f"cache hit: outputs of run {job.reused_from}" if job.reused_from else ""
        return self._entities.add(
            fragment("job", label), "CreateAction",
            {"name": begun + attempt, "description": again, "instrument": self._workflow_entities.tool(step.tool),
             "startTime": _at(record, job.started_s), "endTime": _at(record, ended),
             "actionStatus": STATUS.get(job.state, FAILED), "error": error,
             "object": self._of(step, job.inputs, output=False), "result": self._of(step, job.outputs, output=True),
             "location": self._place(record, job), "resourceUsage": self._usage(job, label),
             "softwareRequirements": self._software(job), "containerImage": self._images(job)},
        )  # fmt: skip

    def _of(self, step: CrateStep, ports: Mapping[str, Any], *, output: bool) -> list[Any]:
        return [
            entity
            for name, items in ports.items()
            for entity in self._data.of_port(
                name,
                items,
                self._classes.of(step.path, name),
                self._workflow_entities.parameter(step, name, output=output),
            )
        ]

    def _run_inputs(self, jobs: Iterable[Job]) -> list[Any]:
        """Return the inputs of the workflow, as its steps read them."""
        by_id: dict[str, Any] = {}
        for job in jobs:
            step = self._steps[job.step]
            for name, ports in step.sources.items():
                if len(ports) == 1 and ports[0].step == "/":
                    entity = self._workflow_entities.parameter(None, ports[0].name, output=False)
                    for item_entity in self._data.of_port(
                        ports[0].name, job.inputs.get(name, ()), self._classes.of(step.path, name), entity
                    ):
                        by_id[item_entity.id] = item_entity
        return list(by_id.values())

    def _results(self, jobs: Iterable[Job]) -> list[Any]:
        """Return the outputs of the workflow: the outputs of the steps that are its sources."""
        outputs: dict[FormalPort, list[Any]] = {}
        for job in jobs:
            if job.state == "completed":
                for name, items in job.outputs.items():
                    outputs.setdefault(FormalPort(job.step, name), []).extend(items)
        by_id: dict[str, Any] = {}
        for name, ports in self._workflow_entities.definition.results.items():
            entity = self._workflow_entities.parameter(None, name, output=True)
            for port in ports:
                classes = self._classes.of(port.step, port.name)
                for item_entity in self._data.of_port(name, outputs.get(port, ()), classes, entity):
                    by_id[item_entity.id] = item_entity
        return list(by_id.values())

    def _place(self, record: Run, job: Job) -> Any:
        kind = (record.facts.get("deployments") or {}).get(job.deployment, "")
        words, properties = (
            [job.where],
            {"name": job.where, "description": f"a deployment of type {kind}" if kind else ""},
        )
        if self._with_hosts and job.location and job.location != HERE:
            words.append(job.location)
            properties["address"] = job.location
        return self._entities.add(fragment("place", *words), "Place", properties)

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
                fragment("image", image.name, image.tag, image.sha256[:12]), "ContainerImage",
                {"name": image.name, "tag": image.tag, "sha256": image.sha256, "additionalType": {"@id": IMAGE},
                 "registry": image.registry if self._with_hosts else ""},
            )
            for image in images_of(job.site)
        ]  # fmt: skip

    def _shown(self, text: str) -> str:
        return text if self._with_hosts else self._hosts.without(text)

    def _software(self, job: Job) -> list[Any]:
        if job.report is None:
            return []
        versions = {"medweave": job.report.medweave_version, **job.report.versions}
        return [self._entities.software(name, version) for name, version in sorted(versions.items())]


def _at(record: Run, seconds: float) -> str:
    return (record.started + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def _error_of_run(record: Run) -> str:
    if record.state in STATUS:
        return ""
    failed = ", ".join(job.label for job in record.failures())
    state = "the event log has no end" if record.state == UNFINISHED else record.state
    return f"{state}; failed: {failed}" if failed else state


def _error_of_job(job: Job) -> str:
    return "the event log has no end of this job" if job.state == UNFINISHED else job.state
