"""Findings of checks: place, seen, expected, fix; and the rules by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from medweave_core.documents.field_errors import FieldFault
from medweave_core.documents.line_numbers import FieldPath, shown, spelled
from medweave_core.documents.source_documents import SourceDocument, SyntaxFault


class Severity(IntEnum):
    """Severity of a finding; the value is the exit code if it is the worst one."""

    WARNING = 1  # it runs, but probably not as intended
    ERROR = 65  # it does not run, or must not


ERROR, WARNING = Severity.ERROR, Severity.WARNING

# Name -> severity, what the rule holds. The reference page is made from it.
RULES: dict[str, tuple[Severity, str]] = {
    "yaml-syntax": (ERROR, "the file is YAML in UTF-8, and has in it what its kind needs"),
    "file-kind": (
        WARNING,
        "a YAML file that is named on the command line is of a kind that is known; of others only secrets and images are looked at",
    ),
    "duplicate-key": (ERROR, "a mapping has each key once; YAML readers differ in which of two they take"),
    "cwl-structure": (
        ERROR,
        "a CWL document has the fields of CWL v1.2, with values that they can have (cwl-utils' parser)",
    ),
    "cwl-type": (ERROR, "a type is one of CWL's, or declared in the document; a default has the type of its input"),
    "cwl-requirement": (
        ERROR,
        "requirements and hints are CWL's or have a declared prefix; features in use are required",
    ),
    "container": (
        ERROR,
        "no tool of a workflow that medweave's sites run asks for a container (DockerRequirement): the site provides the software",
    ),
    "cwltool": (ERROR, "cwltool, the reference implementation of CWL, accepts each document (only with --cwltool)"),
    "cwl-duplicate-id": (ERROR, "inputs, outputs and steps of one document have different names"),
    "cwl-missing-file": (ERROR, "the document that a step runs exists"),
    "cwl-port": (
        ERROR,
        "a step binds inputs that its tool has, every input that it must have, and takes outputs that it has",
    ),
    "cwl-extra-port": (
        WARNING,
        "a step binds nothing that its tool does not have; CWL takes it, and only waits for it",
    ),
    "cwl-source": (ERROR, "what an input or output is bound to exists, and an output that may not be null is bound"),
    "cwl-edge-type": (
        ERROR,
        "what flows along an edge has the type that is taken there, with scatter, linkMerge and pickValue",
    ),
    "cwl-null-edge": (WARNING, "what may be null along an edge goes where null is taken"),
    "cwl-format": (ERROR, "a file's format is the one that is taken where it goes"),
    "cwl-scatter": (ERROR, "a step is scattered over inputs that it binds"),
    "cwl-cycle": (ERROR, "no step waits for itself"),
    "cwl-expression": (ERROR, "an expression has an end, and reads inputs and fields that are there"),
    "cwl-output": (WARNING, "a tool says where its program leaves each file and folder that it is to hand on"),
    "cwl-verb": (ERROR, "a tool that calls `medweave-step` names a verb that there is, and options that it has"),
    "cwl-unused-input": (WARNING, "every input is read by something"),
    "roles": (ERROR, "roles.yml gives each step of its workflows one role that exists, and names no other step"),
    "binding-structure": (ERROR, "a StreamFlow file has the keys and values that StreamFlow and the connectors take"),
    "binding-file": (ERROR, "the workflow, the job file, charts and other files that are named exist"),
    "binding-step": (ERROR, "a bound step exists, and each step is bound"),
    "binding-port": (ERROR, "a bound port is an input of the workflow, and says in which folder it lies"),
    "binding-target": (ERROR, "a target's deployment and service exist; so do the filters and policies that are named"),
    "binding-stale": (ERROR, "a file that `medweave bind` wrote is up to date"),
    "site": (ERROR, "a site file has the keys and values of its schema, and its places exist"),
    "site-role": (ERROR, "a site has a place for each role of the workflows that are bound to it"),
    "schedule": (
        ERROR,
        "a schedule has the keys and values of its schema, times that cron takes, and its StreamFlow file is there",
    ),
    "data-route": (ERROR, "data lie and go only where the site's data rules let them (`mayHold`)"),
    "resource-cap": (ERROR, "a tool asks for no more cores, memory or GPUs than its place gives it"),
    "job-input": (ERROR, "a job file names inputs of its workflow, and all that it must have"),
    "job-type": (ERROR, "a value in a job file has the type and the format of its input"),
    "job-file": (
        ERROR,
        "files that a job names, and their secondary files, exist here, unless a site holds them or a run makes them (git-ignored)",
    ),
    "chart": (
        ERROR,
        "a chart has its files, and its schema is a JSON Schema; `helm lint` and `helm template` with --helm",
    ),
    "chart-value": (
        ERROR,
        "a chart's value is one that its values.schema.json takes, and no container asks for more than its limit",
    ),
    "secret-in-clear": (ERROR, "no file contains a plaintext password, token or key"),
    "image-unpinned": (ERROR, "an image has a digest, or a tag that stays (with --images digest: a digest)"),
    "version-differs": (ERROR, "charts and images of medweave have the version of the step package"),
}
# Rules about the shape of a file of its kind.
OF_SHAPE = ("yaml-syntax", "duplicate-key", "cwl-structure", "binding-structure", "site")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ValidationFinding:
    """One mistake.

    Attributes:
        file: the file that has to be changed.
        line, column: from 1.
        field: path in the document, or empty.
        rule: one of RULES.
        what: the mistake, in one sentence.
        fix: how to correct it, with the closest match if there is one.
    """

    file: Path
    line: int
    column: int
    field: FieldPath = ()
    rule: str
    what: str
    seen: str = ""
    expected: str = ""
    fix: str

    @property
    def severity(self) -> Severity:
        """Return the severity of the rule."""
        return RULES[self.rule][0]

    @property
    def where(self) -> str:
        """Return file, line and column, such as `workflows/train.cwl:12:3`."""
        return f"{shown(self.file)}:{self.line}:{self.column}"

    @property
    def place(self) -> str:
        """Return the field as text."""
        return spelled(self.field)


def one_of(names: Iterable[str]) -> str:
    """Return the expectation for a name that must be one of several."""
    return f"one of {', '.join(known)}" if (known := [*map(str, names)]) else "nothing: none is defined"


def finding_at(
    document: SourceDocument, rule: str, field: FieldPath, what: str, *, seen: str = "", expected: str = "", fix: str
) -> ValidationFinding:
    """Return a finding at a field of a document."""
    line, column = document.position(field)
    return ValidationFinding(
        file=document.path, line=line, column=column, field=field, rule=rule, what=what, seen=seen, expected=expected, fix=fix
    )  # fmt: skip


def of_syntax(fault: SyntaxFault) -> ValidationFinding:
    """Return the finding for an error in a file as YAML."""
    return ValidationFinding(
        file=fault.path, line=fault.line, column=fault.column, field=fault.field,
        rule="duplicate-key" if fault.is_duplicate_key else "yaml-syntax", what=fault.what, seen=fault.seen,
        expected=fault.expected, fix=fault.fix,
    )  # fmt: skip


def no_json(path: Path, error: json.JSONDecodeError, rule: str) -> ValidationFinding:
    """Return the finding for a file that is not JSON."""
    return ValidationFinding(
        file=path, line=error.lineno, column=error.colno, rule=rule, what=f"this is not valid JSON: {error.msg}.",
        seen="".join(error.doc.splitlines()[error.lineno - 1 : error.lineno]).strip()[:80], expected="JSON",
        fix="mend that line or the one above it",
    )  # fmt: skip


def of_fault(fault: FieldFault, rule: str, line: int, column: int) -> ValidationFinding:
    """Return the finding for an error of a reader."""
    return ValidationFinding(
        file=fault.path, line=line, column=column, field=fault.field, rule=rule, what=fault.problem, seen=fault.seen,
        expected=fault.expected, fix=fault.do,
    )  # fmt: skip
