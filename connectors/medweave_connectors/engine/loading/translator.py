"""StreamFlow's CWL translator, which also stores medweave's hints and checks steps by data rules and bindings.

StreamFlow drops hints of other programs. The translator refuses a step that the data rules forbid at its target, and a binding of
a step or port that the workflow does not have: before any deployment, and by `--validate` too.
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
from medweave_connectors.policy.input_values import with_links
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
    """Stores the hints of each tool under the path of its step. Steps and workflows pass hints on to their tools, as in CWL."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._inherited: list[dict[str, MutableMapping[str, Any]]] = [{}]
        self._tools: set[str] = set()
        self._documents: set[str] = set()
        inputs = keywords.get("cwl_inputs_path")
        if inputs is not None:  # relative paths start at the folder of the file, not of a link to it
            self.cwl_inputs_path = os.path.realpath(inputs)

    def _recursive_translate(
        self, workflow: Any, cwl_element: Any, context: MutableMapping[str, Any], name_prefix: str, cwl_name_prefix: str
    ) -> None:
        self._documents.add(cwl_element.loadingOptions.fileuri)
        namespaces = cwl_element.loadingOptions.namespaces or {}
        own = {
            job_requests.full_name(hint["class"], namespaces): hint
            for hint in cwl_element.hints or []
            if isinstance(hint, MutableMapping)  # a hint that the parser knows is an object
        }
        for requirement in (*(cwl_element.hints or ()), *(cwl_element.requirements or ())):
            if getattr(requirement, "inplaceUpdate", False) and isinstance(self.context.scheduler, MedweaveScheduler):
                # A step may write to a file: that file cannot be a link to a cache entry.
                self.context.scheduler.reuse.is_enabled = False
            if getattr(requirement, "class_", "") == job_requests.WORK_REUSE:
                own[job_requests.WORK_REUSE] = {"enableReuse": requirement.enableReuse}
            if getattr(requirement, "class_", "") == "CUDARequirement":  # StreamFlow drops both hint and requirement
                own[job_requests.CUDA_REQUIREMENT] = {
                    key: value for key in job_requests.CUDA_KEYS if (value := getattr(requirement, key)) is not None
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
        """Refuse a step at a site of ours whose tool requires a container, unless the file names a container runtime.

        Raises:
            SiteConfigError: StreamFlow would start docker on the driver's machine.
        """
        container = (context["hints"] | context["requirements"]).get(docker_requirement.DOCKER_REQUIREMENT)
        if container is None or self.workflow_config.propagate(PurePosixPath(step), "docker") is not None:
            return
        targets = get_binding_config(step, "step", self.workflow_config).targets
        if any(target.deployment.type.startswith(OUR_TYPES) for target in targets):
            image = docker_requirement.image_of({"hints": {docker_requirement.DOCKER_REQUIREMENT: container.save()}})
            raise SiteConfigError(**docker_requirement.refusal(step, image or docker_requirement.DOCKER_REQUIREMENT))

    def _inject_input(
        self, workflow: Any, global_name: str, port_name: str, port: Any, output_directory: str | None, value: Any
    ) -> None:
        """Replace paths of this machine, and of some sites, by links: StreamFlow's database stores paths and names."""
        home, target = home_of(plan(self.context.config).folder.parent), self._target_of(global_name)
        is_local = target is None or target.deployment.type in LOCAL_TYPES
        scheduler = self.context.scheduler
        has_pseudonyms = isinstance(scheduler, MedweaveScheduler) and scheduler.pseudonyms
        if has_pseudonyms and (is_local or self._gets_site_link(target, port_name)):
            value, folder = _inject_value(value), output_directory or ""
            if target is not None and target.workdir is not None:
                value = remap_token_value(os.path, folder, target.workdir, value)
                folder = output_directory = target.workdir
            # Without the file's name, which may contain patient data.
            line = line_of(Path(self.cwl_inputs_path or ""), (port_name,))
            what = f"the job file, {f'line {line}, ' if line else ''}input {port_name}"
            links = posixpath.join(target.deployment.workdir or "", LINKS) if target is not None else ""

            def link_of(path: str) -> str:
                if is_local:
                    return str(home.link_of(path, port_name, what=what))
                return home.site_link_of(path, port_name, folder=links)

            value = with_links(value, link_of, folder=folder)
        super()._inject_input(
            workflow=workflow, global_name=global_name, port_name=port_name, port=port,
            output_directory=output_directory, value=value,
        )  # fmt: skip

    def _check_values(self, values: MutableMapping[str, Any]) -> None:
        """Refuse missing inputs and inputs of another type: StreamFlow would start, and run the steps that do not read them."""
        path = Path(self.workflow_config.config["file"])  # absolute by now
        document = plain_document(path) if path.is_file() else None
        if document is not None and "$graph" not in document:
            where = Where(Path(self.context.config["path"]), ("workflows", self.workflow_config.name, "config"))
            job = Path(self.cwl_inputs_path) if self.cwl_inputs_path else None
            with of_the_file():
                refuse(values, document, path.name, job=job, at=where)

    def _gets_site_link(self, target: Target | None, port_name: str) -> bool:
        """Return True if an input at a site is read by a link: not an input with secondary files, which are located by name."""
        has_secondary_files = any(
            port.secondaryFiles and port.id.rpartition("/")[2].rpartition("#")[2] == port_name
            for port in self.cwl_definition.inputs or ()
        )
        return (
            target is not None
            and target.deployment.type in TYPES
            and bool(target.deployment.workdir)
            and not has_secondary_files
        )

    def _target_of(self, global_name: str) -> Target | None:
        """Return the target at which a binding places the data of a port; None for the driver's machine."""
        bound = self.workflow_config.propagate(PurePosixPath(global_name), "port")
        return get_binding_config(global_name, "port", self.workflow_config).targets[0] if bound is not None else None

    def _inject_inputs(self, workflow: Any) -> None:
        """Check inputs and bindings. StreamFlow calls this after all steps, and before it warns of bindings without a match."""
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
