"""Validation of the StreamFlow file, with errors by line and field: StreamFlow's own prints its schemas, the file and a traceback.

A file without types of medweave is validated by StreamFlow's own check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from jsonschema.validators import validator_for
from streamflow.config.validator import SfValidator
from streamflow.core.exception import WorkflowDefinitionException

from medweave_connectors.engine import log_filter
from medweave_connectors.host.errors import of_the_file
from medweave_core.documents.field_errors import FieldFault, fault_at, faults_of_errors
from medweave_core.documents.line_numbers import ThisRun
from medweave_core.documents.streamflow_bindings import OUR_TYPES
from medweave_core.documents.yaml_documents import parse_mapping, read_text
from medweave_core.errors import StepError

WHAT = "StreamFlow file"
VERSION = "version"


class MedweaveValidator(SfValidator):
    """Reads a StreamFlow file and validates it by the schemas of StreamFlow and of all plug-ins."""

    def validate_file(self, streamflow_file: str) -> MutableMapping[str, Any]:
        """Return the document.

        Raises:
            WorkflowDefinitionException: it cannot be read, or is invalid; the message lists every error.
        """
        path = Path(streamflow_file)
        with of_the_file():
            text = self._text(path)
            if OUR_TYPES not in text:
                document: MutableMapping[str, Any] = super().validate_file(streamflow_file)
                return document
            log_filter.shorten()
            ThisRun.file = path.absolute()
            document = parse_mapping(text, path, WHAT)
        if faults := list(self._faults(document, path)):
            raise WorkflowDefinitionException("\n".join(map(str, faults)))
        return document

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return read_text(path, WHAT)
        except StepError:  # an error of medweave: logged without StreamFlow's traceback
            log_filter.shorten()
            raise

    def _faults(self, document: Mapping[str, Any], path: Path) -> Iterator[FieldFault]:
        known = list(self.schema.configs)
        if document.get(VERSION) not in known:
            yield fault_at(
                path, (VERSION,), "unknown version of the StreamFlow file format.", seen=str(document.get(VERSION, "none")),
                expected=" or ".join(known), do=f"write {VERSION}: {known[-1]}",
            )  # fmt: skip
            return
        schema = self.schema.get_config(document[VERSION]).contents
        yield from faults_of_errors(
            validator_for(schema)(schema, registry=self.schema.registry).iter_errors(document), path
        )
