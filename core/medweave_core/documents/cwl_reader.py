"""Reads CWL processes by path, each document once: strictly for what runs them, tolerantly for what reports their errors."""

from __future__ import annotations

from pathlib import Path

from medweave_core.documents.cwl_model import Process, process_in
from medweave_core.documents.cwl_shape import CWL_SHAPE
from medweave_core.documents.field_errors import check
from medweave_core.documents.source_documents import DocumentReader


class CwlReader(DocumentReader):
    """A reader of YAML files that also remembers the CWL processes in them."""

    def __init__(self) -> None:
        super().__init__()
        self._processes: dict[Path, Process] = {}

    def read_process(self, path: Path, what: str) -> Process:
        """Return the process of a document.

        Args:
            what: the file's role, for errors ("CWL workflow").

        Raises:
            UserInputError: there is no such file, or it is not YAML, or it does not have the shape of a CWL document.
        """
        document = self.mapping(path, what)
        if path not in self.checked:
            check(document.data, CWL_SHAPE, path, ())
            self.checked.add(path)
            self._processes[path] = process_in(document)
        return self._processes[path]

    def find_process(self, path: Path) -> Process | None:
        """Return the process of a document, which may have errors; None if there is no document with a mapping."""
        if path not in self._processes:
            documents = self.parse(path).documents
            if not documents or not isinstance(documents[0].data, dict):
                return None
            self._processes[path] = process_in(documents[0])
        return self._processes[path]
