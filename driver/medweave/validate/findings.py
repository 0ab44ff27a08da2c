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
    "yaml-syntax": (ERROR, "A file must be valid YAML in UTF-8 and have the content of its type."),
    "file-kind": (
        WARNING,
        "A YAML file on the command line must have a known type. In other files, only secrets and images are checked.",
    ),
    "duplicate-key": (ERROR, "A mapping must have each key once. YAML readers differ in which duplicate they use."),
    "cwl-structure": (
        ERROR,
        "A CWL document must have the fields and values of CWL v1.2 (parser of cwl-utils).",
    ),
    "cwl-type": (
        ERROR,
        "A type must be a CWL type or declared in the document. A default must have the type of its input.",
    ),
    "cwl-requirement": (
        ERROR,
        "Requirements and hints must be from CWL or have a declared prefix. Features in use must be declared as requirements.",
    ),
    "container": (
        ERROR,
        "A tool must not request a container (DockerRequirement): the site provides the software.",
    ),
    "cwltool": (ERROR, "cwltool, the CWL reference implementation, must accept each document (only with --cwltool)."),
    "cwl-duplicate-id": (ERROR, "Inputs, outputs and steps of a document must have different names."),
    "cwl-missing-file": (ERROR, "The document that a step runs must exist."),
    "cwl-port": (
        ERROR,
        "A step must bind existing inputs of its tool, bind all required ones, and list existing outputs.",
    ),
    "cwl-extra-port": (
        WARNING,
        "A step should not bind an input that its tool does not have. CWL accepts it: the step only waits for "
        "the source.",
    ),
    "cwl-source": (
        ERROR,
        "The source of an input or output must exist. An output that may not be null must have a source.",
    ),
    "cwl-edge-type": (
        ERROR,
        "A source must have the type that the input accepts, including scatter, linkMerge and pickValue.",
    ),
    "cwl-null-edge": (WARNING, "A source that may be null should lead to an input that accepts null."),
    "cwl-format": (ERROR, "A file must have the format that the input accepts."),
    "cwl-scatter": (ERROR, "A step must be scattered over inputs that it binds."),
    "cwl-cycle": (ERROR, "Steps must not depend on each other in a cycle."),
    "cwl-expression": (ERROR, "An expression must be terminated, and read existing inputs and fields."),
    "cwl-output": (WARNING, "A tool must declare where its program writes each output file and folder."),
    "cwl-verb": (ERROR, "A tool that calls `medweave-step` must use an existing verb and existing options."),
    "cwl-unused-input": (WARNING, "Each input should be used."),
    "roles": (ERROR, "roles.yml must give each step of its workflows one existing role, and name no other step."),
    "binding-structure": (
        ERROR,
        "A StreamFlow file must have the keys and values that StreamFlow and the connectors accept.",
    ),
    "binding-file": (ERROR, "The workflow, job file, charts and other named files must exist."),
    "binding-step": (ERROR, "A bound step must exist, and each step must be bound."),
    "binding-port": (
        ERROR,
        "A bound port must be an input of the workflow, and its target must name the folder of the input.",
    ),
    "binding-target": (ERROR, "The deployment and service of a target, and named filters and policies, must exist."),
    "binding-stale": (ERROR, "A file that `medweave bind` wrote should be up to date."),
    "site": (ERROR, "A site file must match its schema, and its deployments and services must exist."),
    "site-role": (ERROR, "A site file must give a deployment to each role of the workflows that are bound to it."),
    "schedule": (
        ERROR,
        "A schedule file must match its schema, have valid cron times, and name an existing StreamFlow file.",
    ),
    "data-route": (
        ERROR,
        "Data must be stored and transferred only where the data rules of the site (`mayHold`) allow it.",
    ),
    "resource-cap": (ERROR, "A tool must not request more cores, memory or GPUs than its service provides."),
    "job-input": (ERROR, "A job file must name inputs of its workflow, including all required ones."),
    "job-type": (ERROR, "A value in a job file must have the type and the format of its input."),
    "job-file": (
        ERROR,
        "Files of a job file, and their secondary files, must exist on this machine, unless a site stores them or a run "
        "creates them (git-ignored).",
    ),
    "chart": (
        ERROR,
        "A chart must have its files, and its schema must be a JSON Schema. With --helm, `helm lint` and `helm "
        "template` must succeed.",
    ),
    "chart-value": (
        ERROR,
        "A chart value must match values.schema.json, and no container may request more than its limit.",
    ),
    "secret-in-clear": (ERROR, "No file may contain a plaintext password, token or key."),
    "image-unpinned": (ERROR, "An image must have a digest or a fixed tag (with --images digest: a digest)."),
    "version-differs": (ERROR, "Charts and images of medweave must have the version of the step package."),
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
        fix="correct this line or the line above it",
    )  # fmt: skip


def of_fault(fault: FieldFault, rule: str, line: int, column: int) -> ValidationFinding:
    """Return the finding for an error of a reader."""
    return ValidationFinding(
        file=fault.path, line=line, column=column, field=fault.field, rule=rule, what=fault.problem, seen=fault.seen,
        expected=fault.expected, fix=fault.do,
    )  # fmt: skip
