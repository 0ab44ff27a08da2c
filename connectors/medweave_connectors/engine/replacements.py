"""The names of StreamFlow and cwl-utils that medweave replaces, and the one function that replaces them.

Each entry records the stock signature that its replacement was written for. medweave does not start with another version of
StreamFlow, without one of the names, or with another signature: the run would fail later, or compute something else.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pkgutil import resolve_name
from typing import Any

from medweave_core.errors import BackendMissingError

STREAMFLOW_VERSION = "0.2.0rc3"  # the exact pin of pyproject.toml
_PACKAGE = "medweave_connectors.engine."
_NEXT_LINE = "\n            "


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replaced name.

    Attributes:
        owner: the module that holds the name, or `module:name` of a class or dictionary.
        name: an attribute of the module or class, or a key of the dictionary.
        signature: of the stock object, as `signature_of` writes it.
        ours: `module:name` of the object of medweave, from `medweave_connectors.engine`.
    """

    owner: str
    name: str
    signature: str
    ours: str

    @property
    def full_name(self) -> str:
        """Return the replaced name as Python code would write it."""
        return f"{self.owner.replace(':', '.')}['{self.name}']" if ":" in self.owner else f"{self.owner}.{self.name}"

    def stock(self) -> Any:
        """Return the object that the name holds now.

        Raises:
            ImportError, AttributeError, KeyError: the name does not exist.
        """
        owner = resolve_name(self.owner)
        return owner[self.name] if isinstance(owner, MutableMapping) else getattr(owner, self.name)

    def put(self, value: Any) -> None:
        """Let the name hold another object."""
        owner = resolve_name(self.owner)
        if isinstance(owner, MutableMapping):
            owner[self.name] = value
        else:
            setattr(owner, self.name, value)


REPLACEMENTS = (
    # Reading files: the StreamFlow file, CWL documents, job files.
    Replacement("streamflow.main", "SfValidator", "()", "loading.file_schema:MedweaveValidator"),
    Replacement(
        "streamflow.cwl.main", "CWLTranslator",
        "(context, name, output_directory, cwl_definition, cwl_inputs, cwl_inputs_path, workflow_config)",
        "loading.translator:MedweaveTranslator",
    ),
    Replacement(
        "cwl_utils.parser", "load_document_by_uri",
        "(path, loadingOptions=None, load_all=False)",
        "loading.document_loading:load_document_by_uri",
    ),
    Replacement(
        "cwl_utils.parser", "load_document_by_string",
        "(string, uri, loadingOptions=None, id_=None, load_all=False)",
        "loading.document_loading:load_document_by_string",
    ),
    Replacement(
        "cwl_utils.parser", "load_document_by_yaml",
        "(yaml, uri, loadingOptions=None, id_=None, load_all=False)",
        "loading.document_loading:load_document_by_yaml",
    ),
    Replacement("cwl_utils.parser.utils", "load_step", "(step)", "loading.document_loading:load_step"),
    Replacement(
        "cwl_utils.parser.utils", "load_inputfile_by_uri",
        "(version, path, loadingOptions=None)",
        "loading.document_loading:load_inputfile_by_uri",
    ),
    Replacement(
        "cwl_utils.parser.utils", "load_inputfile_by_string",
        "(version, string, uri, loadingOptions=None)",
        "loading.document_loading:load_inputfile_by_string",
    ),
    Replacement(
        "cwl_utils.parser.utils", "load_inputfile_by_yaml",
        "(version, yaml, uri, loadingOptions=None)",
        "loading.document_loading:load_inputfile_by_yaml",
    ),
    # Steps: cache, data classes, provenance, partial failures, transfers.
    Replacement(
        "streamflow.cwl.translator", "CWLExecuteStep",
        "(name, workflow, job_port, recoverable, expression_lib=None, full_js=False)",
        "steps.execute_step:MedweaveExecuteStep",
    ),
    Replacement(
        "streamflow.cwl.translator", "CWLInputInjectorStep",
        "(name, workflow, job_port)",
        "data.origin:MedweaveInputInjectorStep",
    ),
    Replacement(
        "streamflow.cwl.translator", "CWLTransferStep",
        "(name, workflow, job_port, prefix_path=True, writable=False)",
        "data.transfer_step:MedweaveTransferStep",
    ),
    # Scatter over thousands of items.
    Replacement(
        "streamflow.cwl.translator", "DotProductCombinator",
        "(name, workflow)",
        "steps.scatter:MedweaveDotProductCombinator",
    ),
    Replacement(
        "streamflow.cwl.processor:CWLTokenProcessor", "_process_file_token",
        "async (self, inputs, token_value)",
        "steps.scatter:process_file_token",
    ),
    Replacement("streamflow.cwl.command", "get_job_token", "(job_name, token_list)", "steps.scatter:get_job_token"),
    Replacement("streamflow.cwl.step", "get_job_token", "(job_name, token_list)", "steps.scatter:get_job_token"),
    Replacement("streamflow.workflow.step", "get_job_token", "(job_name, token_list)", "steps.scatter:get_job_token"),
    # Command lines.
    Replacement(
        "streamflow.cwl.translator", "_create_command",
        "(cwl_element, cwl_name_prefix, schema_def_types, context, step)",
        "command_lines:create_command",
    ),
    Replacement(
        "streamflow.cwl.translator", "_get_command_token_processor_from_input",
        "(cwl_element, port_type, input_name, is_shell_command=False, schema_def_types=None)",
        "command_lines:no_input_processor",
    ),
    # Values of type File and Directory.
    Replacement(
        "streamflow.cwl.command", "_adjust_input",
        "(job_name, input_, path_processor, src_path, dst_path)",
        "file_values:adjust_input",
    ),
    Replacement(
        "streamflow.cwl.command", "_adjust_cwl_output",
        "(base_path, job_name, path_processor, value)",
        "file_values:adjust_cwl_output",
    ),
    Replacement(
        "streamflow.cwl.utils", "write_remote_file",
        "async (context, locations, content, path, relpath)",
        "file_values:write_remote_file",
    ),
    Replacement(
        "streamflow.cwl.utils", "remap_path",
        "(path_processor, path, old_dir, new_dir)",
        "file_values:remap_path",
    ),
    Replacement(
        "streamflow.cwl.utils", "get_file_token",
        "async (context, connector, cwl_version, locations, token_class, filepath, basename=None, contents=None, "
        "file_format=None, is_literal=False, load_contents=False, load_listing=None)",
        "file_values:get_file_token",
    ),
    Replacement(
        "streamflow.cwl.utils", "update_file_token",
        "async (context, connector, cwl_version, location, token_value, load_contents, load_listing=None)",
        "file_values:update_file_token",
    ),
    # Sites. The manager of deployments has no key in a StreamFlow file: each run needs this one.
    Replacement(
        "streamflow.data.remotepath", "RemoteStreamFlowPath",
        "(*args, context, location)",
        "data.remote_path:MedweaveRemotePath",
    ),
    Replacement(
        "streamflow.deployment:deployment_manager_classes", "default",
        "(context)",
        "scheduling.deployments:MedweaveDeploymentManager",
    ),
    Replacement(
        "streamflow.deployment.manager", "FutureConnector",
        "(name, config_dir, connector_type, external, **kwargs)",
        "scheduling.deployments:MedweaveFutureConnector",
    ),
)  # fmt: skip

_installed: set[Replacement] = set()


def install() -> None:
    """Replace every name of the table, after `check`; a second call replaces nothing.

    Raises:
        BackendMissingError: from `check`.
    """
    check()
    # All modules are imported before the first name changes: they keep the stock functions that they call.
    ours = {replacement: resolve_name(_PACKAGE + replacement.ours) for replacement in REPLACEMENTS}
    for replacement in REPLACEMENTS:
        if replacement not in _installed:
            replacement.put(ours[replacement])
            _installed.add(replacement)


def check(replacements: Sequence[Replacement] = REPLACEMENTS) -> None:
    """Compare the installed StreamFlow with the one that medweave was written for. This module imports nothing of it before.

    Raises:
        BackendMissingError: the version, a name or a signature differs; the message lists every difference.
    """
    differences = []
    if (version := metadata.version("streamflow")) != STREAMFLOW_VERSION:
        differences.append((f"StreamFlow {version}", f"StreamFlow {STREAMFLOW_VERSION}"))
    for replacement in replacements:
        if replacement not in _installed and (seen := _signature_now(replacement)) != replacement.signature:
            name = replacement.full_name
            differences.append((f"{name}: {seen}", f"{name}: {replacement.signature}"))
    if differences:
        with contextlib.suppress(ImportError):  # of a name that this StreamFlow lacks
            from medweave_connectors.engine import log_filter

            log_filter.shorten()  # StreamFlow logs the error below with a traceback
        seen_lines, expected_lines = zip(*differences, strict=True)
        raise BackendMissingError(
            "medweave does not start: the installed StreamFlow or cwl-utils differs from the supported version.",
            seen=_NEXT_LINE.join(seen_lines),
            expected=_NEXT_LINE.join(expected_lines),
            do=f"install streamflow=={STREAMFLOW_VERSION} and cwl-utils as in medweave's constraints.txt",
        )


def _signature_now(replacement: Replacement) -> str:
    try:
        return signature_of(replacement.stock())
    except (ImportError, AttributeError, KeyError):
        return "there is no such name"
    except (TypeError, ValueError):
        return "no function or class"


def signature_of(function: Callable[..., Any]) -> str:
    """Return the parameters of a function, or of a class's constructor, with their defaults and without types.

    Raises:
        TypeError, ValueError: the object has no signature.
    """
    is_class = isinstance(function, type)
    # `inspect` takes `__new__` or `__init__` of a class, by the version of Python.
    signature = inspect.signature(function.__init__ if is_class else function)
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()][is_class:]
    bare = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"async {bare}" if inspect.iscoroutinefunction(function) else str(bare)
