"""Validation by cwltool, the reference implementation of CWL: other engines need not run a document that it refuses."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from medweave.validate.findings import ValidationFinding
from medweave.validate.repository import Repository
from medweave_core.documents.source_documents import SourceDocument

RULE = "cwltool"
_PLACED = re.compile(r"(?P<file>\S.*?\.cwl):(?P<line>\d+):(?P<column>\d+):\s*(?P<text>.*)")


def check_with_cwltool(repository: Repository, broken: Collection[Path]) -> Iterator[ValidationFinding]:
    """Yield what `cwltool --validate` refuses, at the innermost place that it names.

    A document that another one runs is validated with that one.

    Args:
        broken: files of which something is known already; documents that run one of these are left out, too.
    """
    documents = repository.cwl.values()
    runs = {source.path: _files_run_by(source, repository) for source in documents}
    inner = {path for source, paths in runs.items() for path in paths if path != source}
    for source in documents:
        if source.path not in inner and not ({source.path} | runs[source.path]) & set(broken):
            yield from _validate(source)


def _files_run_by(source: SourceDocument, repository: Repository) -> set[Path]:
    process = repository.reader.find_process(source.path)
    steps = process.steps.values() if process is not None else ()
    return {step.run_file for step in steps if step.run_file is not None}


def _validate(source: SourceDocument) -> Iterator[ValidationFinding]:
    from cwltool.main import main  # a second to import

    output = io.StringIO()
    arguments = ["--validate", "--quiet", "--disable-color", str(source.path)]
    code = main(arguments, stdout=io.StringIO(), stderr=output, logger_handler=logging.StreamHandler(output))
    if code == 0:
        return
    lines = output.getvalue().splitlines()
    places = [match for line in lines if (match := _PLACED.match(line))]
    texts = [match["text"].strip() if (match := _PLACED.match(line)) else line.strip() for line in lines]
    file, line, column = source.path, 1, 1
    if places:
        file, line, column = Path(places[-1]["file"]).resolve(), int(places[-1]["line"]), int(places[-1]["column"])
    yield ValidationFinding(
        file=file, line=line, column=column, rule=RULE,
        what="cwltool, the CWL reference implementation, rejects this document.",
        seen=" ".join(text for text in texts if text and not text.startswith(("INFO", "ERROR"))).partition(", tried ")[0],
        expected="a document that `cwltool --validate` accepts",
        fix="correct this line; `cwltool --validate FILE` shows the whole message",
    )  # fmt: skip
