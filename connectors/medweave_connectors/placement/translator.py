"""StreamFlow's CWL translator, which also keeps medweave's hints, and holds each step against the file's rules and bindings.

The engine drops hints that it does not know. A step that its data keep away from where it is bound to is refused here, and so is
a binding of a step or port that the workflow does not have: before anything is deployed, and by `--validate` too.
"""

from __future__ import annotations

import posixpath
from collections.abc import MutableMapping
from typing import Any

import streamflow.cwl.main
from streamflow.cwl.translator import CWLTranslator, _inject_value

from medweave_connectors import requests
from medweave_connectors.errors import of_the_file
from medweave_connectors.placement.addresses import refuse_addresses
from medweave_connectors.placement.filter import check_placement
from medweave_connectors.placement.names import check_paths
from medweave_connectors.placement.scheduler import MedweaveScheduler


class MedweaveTranslator(CWLTranslator):  # type: ignore[misc]
    """Notes the hints of each tool under the path of its step; a step and its workflow hand theirs down, as in CWL."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._inherited: list[dict[str, MutableMapping[str, Any]]] = [{}]
        self._tools: set[str] = set()

    def _recursive_translate(self, workflow: Any, cwl_element: Any, **keywords: Any) -> None:
        namespaces = cwl_element.loadingOptions.namespaces or {}
        own = {
            requests.full_name(hint["class"], namespaces): hint
            for hint in cwl_element.hints or []
            if isinstance(hint, MutableMapping)  # those that the parser knows are objects by now
        }
        for asked in (*(cwl_element.hints or ()), *(cwl_element.requirements or ())):
            if getattr(asked, "inplaceUpdate", False) and isinstance(self.context.scheduler, MedweaveScheduler):
                self.context.scheduler.reuse.on = (
                    False  # a file that a step may write to cannot be a name of a kept one
                )
            if getattr(asked, "class_", "") == requests.WORK_REUSE:
                own[requests.WORK_REUSE] = {"enableReuse": asked.enableReuse}
            if getattr(asked, "class_", "") == "CUDARequirement":  # StreamFlow drops it, in both places
                own[requests.CUDA_REQUIREMENT] = {
                    key: value for key in requests.CUDA_KEYS if (value := getattr(asked, key)) is not None
                }
        self._inherited.append(self._inherited[-1] | own)
        try:
            super()._recursive_translate(workflow=workflow, cwl_element=cwl_element, **keywords)
        finally:
            self._inherited.pop()

    def _translate_command_line_tool(self, *, name_prefix: str, **keywords: Any) -> None:
        self._tools.add(name_prefix)
        requests.note_step(name_prefix, requests.read_hints(self._inherited[-1], where=name_prefix))
        check_placement(name_prefix, self.workflow_config)
        super()._translate_command_line_tool(name_prefix=name_prefix, **keywords)

    def _inject_inputs(self, workflow: Any) -> None:
        """The engine calls it when it has seen all steps, and before it warns of bindings that match none."""
        with of_the_file():
            inputs = {name: _inject_value(value) for name, value in self.cwl_inputs.items()}
            refuse_addresses(inputs, file=posixpath.basename(self.cwl_inputs_path or ""))
        if isinstance(self.context.scheduler, MedweaveScheduler):
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
        super()._inject_inputs(workflow)


def install() -> None:
    """Puts it in the place where StreamFlow looks its translator up."""
    streamflow.cwl.main.CWLTranslator = MedweaveTranslator
