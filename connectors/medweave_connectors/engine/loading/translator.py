"""StreamFlow's CWL translator, which also keeps medweave's hints, and holds each step against the file's rules and bindings.

The engine drops hints that it does not know. A step that its data keep away from where it is bound to is refused here, and so is
a binding of a step or port that the workflow does not have: before anything is deployed, and by `--validate` too.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from collections.abc import MutableMapping
from pathlib import Path, PurePosixPath
from typing import Any

from streamflow.core.deployment import Target
from streamflow.cwl.translator import CWLTranslator, _inject_value
from streamflow.cwl.utils import remap_token_value
from streamflow.deployment.utils import get_binding_config

from medweave_connectors.engine.input_links import LINKS, TYPES
from medweave_connectors.engine.loading.document_loading import document_digests, plain_document
from medweave_connectors.engine.scheduling.filter import check_placement
from medweave_connectors.engine.scheduling.scheduler import MedweaveScheduler
from medweave_connectors.engine.steps import input_symbols
from medweave_connectors.host.errors import SiteConfigError, of_the_file
from medweave_connectors.jobs import job_requests
from medweave_connectors.policy.input_values import behind_links
from medweave_connectors.policy.pseudonym_home import home_of
from medweave_connectors.policy.web_inputs import refuse_addresses
from medweave_connectors.runlog import plan
from medweave_core.documents import docker_requirement
from medweave_core.documents.binding_names import check_paths
from medweave_core.documents.job_values import refuse
from medweave_core.documents.line_numbers import Where, line_of
from medweave_core.documents.streamflow_bindings import OUR_TYPES
from medweave_core.documents.streamflow_paths import LOCAL_TYPES


class MedweaveTranslator(CWLTranslator):
    """Notes the hints of each tool under the path of its step; a step and its workflow hand theirs down, as in CWL."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._inherited: list[dict[str, MutableMapping[str, Any]]] = [{}]
        self._tools: set[str] = set()
        self._documents: set[str] = set()
        if (
            inputs := keywords.get("cwl_inputs_path")
        ) is not None:  # paths start at the file itself, not at a link to it
            self.cwl_inputs_path = os.path.realpath(inputs)

    def _recursive_translate(
        self, workflow: Any, cwl_element: Any, context: MutableMapping[str, Any], name_prefix: str, cwl_name_prefix: str
    ) -> None:
        self._documents.add(cwl_element.loadingOptions.fileuri)
        namespaces = cwl_element.loadingOptions.namespaces or {}
        own = {
            job_requests.full_name(hint["class"], namespaces): hint
            for hint in cwl_element.hints or []
            if isinstance(hint, MutableMapping)  # those that the parser knows are objects by now
        }
        for asked in (*(cwl_element.hints or ()), *(cwl_element.requirements or ())):
            if getattr(asked, "inplaceUpdate", False) and isinstance(self.context.scheduler, MedweaveScheduler):
                self.context.scheduler.reuse.is_enabled = (
                    False  # a file that a step may write to cannot be a name of a kept one
                )
            if getattr(asked, "class_", "") == job_requests.WORK_REUSE:
                own[job_requests.WORK_REUSE] = {"enableReuse": asked.enableReuse}
            if getattr(asked, "class_", "") == "CUDARequirement":  # StreamFlow drops it, in both places
                own[job_requests.CUDA_REQUIREMENT] = {
                    key: value for key in job_requests.CUDA_KEYS if (value := getattr(asked, key)) is not None
                }
        self._inherited.append(self._inherited[-1] | own)
        try:
            super()._recursive_translate(
                workflow=workflow, cwl_element=cwl_element, context=context,
                name_prefix=name_prefix, cwl_name_prefix=cwl_name_prefix,
            )  # fmt: skip
        finally:
            self._inherited.pop()

    def _translate_command_line_tool(
        self, workflow: Any, cwl_element: Any, context: MutableMapping[str, Any], name_prefix: str, cwl_name_prefix: str
    ) -> None:
        self._tools.add(name_prefix)
        hints = job_requests.read_hints(self._inherited[-1], where=name_prefix)
        codes = tuple(getattr(cwl_element, "successCodes", None) or ())  # an ExpressionTool has none
        job_requests.note_step(name_prefix, dataclasses.replace(hints, success_codes=codes))
        input_symbols.note(name_prefix, cwl_element.inputs or ())
        check_placement(name_prefix, self.workflow_config)
        self._refuse_container(name_prefix, context)
        super()._translate_command_line_tool(
            workflow=workflow, cwl_element=cwl_element, context=context,
            name_prefix=name_prefix, cwl_name_prefix=cwl_name_prefix,
        )  # fmt: skip

    def _refuse_container(self, step: str, context: MutableMapping[str, Any]) -> None:
        """Refuse a step at a site of ours whose tool asks for a container, unless the file says what runs containers.

        Raises:
            SiteConfigError: StreamFlow would start docker on the driver's machine.
        """
        asked = (context["hints"] | context["requirements"]).get(docker_requirement.DOCKER_REQUIREMENT)
        if asked is None or self.workflow_config.propagate(PurePosixPath(step), "docker") is not None:
            return
        targets = get_binding_config(step, "step", self.workflow_config).targets
        if any(target.deployment.type.startswith(OUR_TYPES) for target in targets):
            image = docker_requirement.image_of({"hints": {docker_requirement.DOCKER_REQUIREMENT: asked.save()}})
            raise SiteConfigError(**docker_requirement.refusal(step, image or docker_requirement.DOCKER_REQUIREMENT))

    def _inject_input(
        self, workflow: Any, global_name: str, port_name: str, port: Any, output_directory: str | None, value: Any
    ) -> None:
        """Lets the engine see a file or folder of this machine behind a link only: its database keeps paths and names."""
        home, target = home_of(plan(self.context.config).folder.parent), self._target_of(global_name)
        here = target is None or target.deployment.type in LOCAL_TYPES
        scheduler = self.context.scheduler
        wanted = isinstance(scheduler, MedweaveScheduler) and scheduler.pseudonyms
        if wanted and (here or self._links_there(target, port_name)):
            value, folder = _inject_value(value), output_directory or ""
            if target is not None and target.workdir is not None:
                value = remap_token_value(os.path, folder, target.workdir, value)
                folder = output_directory = target.workdir
            # Without the file's name, which may tell of patients.
            line = line_of(Path(self.cwl_inputs_path or ""), (port_name,))
            what = f"the job file, {f'line {line}, ' if line else ''}input {port_name}"
            links = posixpath.join(target.deployment.workdir or "", LINKS) if target is not None else ""

            def link_of(path: str) -> str:
                if here:
                    return str(home.link_of(path, port_name, what=what))
                return home.link_there(path, port_name, folder=links)

            value = behind_links(value, link_of, folder=folder)
        super()._inject_input(
            workflow=workflow, global_name=global_name, port_name=port_name, port=port,
            output_directory=output_directory, value=value,
        )  # fmt: skip

    def _check_values(self, values: MutableMapping[str, Any]) -> None:
        """Refuses inputs that are missing or of another type: the engine begins, and does the steps that do not read them."""
        path = Path(self.workflow_config.config["file"])  # absolute by now
        document = plain_document(path) if path.is_file() else None
        if document is not None and "$graph" not in document:
            where = Where(Path(self.context.config["path"]), ("workflows", self.workflow_config.name, "config"))
            job = Path(self.cwl_inputs_path) if self.cwl_inputs_path else None
            with of_the_file():
                refuse(values, document, path.name, job=job, at=where)

    def _links_there(self, target: Target | None, port_name: str) -> bool:
        """Whether an input that lies at a site gets a link there: not one whose files are looked for beside it by their names."""
        looks = any(
            each.secondaryFiles and each.id.rpartition("/")[2].rpartition("#")[2] == port_name
            for each in self.cwl_definition.inputs or ()
        )
        return target is not None and target.deployment.type in TYPES and bool(target.deployment.workdir) and not looks

    def _target_of(self, global_name: str) -> Target | None:
        """Where a binding of a port says that its data lie; None for this machine."""
        bound = self.workflow_config.propagate(PurePosixPath(global_name), "port")
        return get_binding_config(global_name, "port", self.workflow_config).targets[0] if bound is not None else None

    def _inject_inputs(self, workflow: Any) -> None:
        """The engine calls it when it has seen all steps, and before it warns of bindings that match none."""
        with of_the_file():
            inputs = {name: _inject_value(value) for name, value in self.cwl_inputs.items()}
            refuse_addresses(inputs, file=posixpath.basename(self.cwl_inputs_path or ""))
        if isinstance(self.context.scheduler, MedweaveScheduler):
            self._check_values(inputs)
            ports = {port for port in self.input_ports if posixpath.dirname(port) == posixpath.sep}
            ports |= {port for port in self.output_ports if posixpath.dirname(port) in self._tools}
            with of_the_file():
                check_paths(
                    self.context.config,
                    self.workflow_config.name,
                    steps=self._tools,
                    ports=ports,
                    document=posixpath.basename(self.workflow_config.config["file"]),
                )
        plan(self.context.config).documents = document_digests(self._documents, self.workflow_config.config["file"])
        super()._inject_inputs(workflow)
