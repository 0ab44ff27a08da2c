"""Findings as text, JSON, annotations of GitHub Actions, or SARIF 2.1.0."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medweave import __version__
from medweave.validate.findings import ERROR, RULES, ValidationFinding
from medweave_core.documents.line_numbers import shown

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(findings: Sequence[ValidationFinding], num_files: int, form: str) -> str:
    """Return the findings in a format of `--format`."""
    return {"text": _text, "json": _json, "github": _github, "sarif": _sarif}[form](findings, num_files)


def _word(finding: ValidationFinding) -> str:
    return "error" if finding.severity is ERROR else "warning"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _text(findings: Sequence[ValidationFinding], num_files: int) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.where}: {_word(finding)}: {finding.what} [{finding.rule}]")
        parts = (("at", finding.place), ("seen", finding.seen), ("expected", finding.expected), ("do", finding.fix))
        lines += [f"  {label + ':':<9} {text}" for label, text in parts if text]
    errors = sum(finding.severity is ERROR for finding in findings)
    warnings = len(findings) - errors
    lines.append(f"{_counted(num_files, 'file')}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}")
    return "\n".join(lines) + "\n"


def _json(findings: Sequence[ValidationFinding], num_files: int) -> str:
    listed = [
        {
            "file": shown(finding.file), "line": finding.line, "column": finding.column, "path": finding.place,
            "rule": finding.rule, "severity": _word(finding), "what": finding.what, "seen": finding.seen,
            "expected": finding.expected, "fix": finding.fix,
        }
        for finding in findings
    ]  # fmt: skip
    return (
        json.dumps({"version": __version__, "files": num_files, "findings": listed}, indent=1, ensure_ascii=False)
        + "\n"
    )


def _github(findings: Sequence[ValidationFinding], num_files: int) -> str:
    lines = [
        f"::{_word(finding)} file={_property(_from_top(finding.file))},line={finding.line},col={finding.column},"
        f"title={_property(finding.rule)}::{_escaped(_message(finding))}"
        for finding in findings
    ]
    return "\n".join([*lines, f"{num_files} files, {len(findings)} findings"]) + "\n"


def _message(finding: ValidationFinding) -> str:
    parts = [
        finding.what,
        *(f"{label}: {text}" for label, text in (("at", finding.place), ("seen", finding.seen)) if text),
    ]
    return "\n".join([*parts, f"expected: {finding.expected}", f"do: {finding.fix}"])


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _from_top(path: Path) -> str:
    """Return a path relative to the top of the working tree, as CI systems name files."""
    top = next((above for above in path.parents if (above / ".git").exists()), Path.cwd())
    return Path(os.path.relpath(path, top)).as_posix()


def _sarif(findings: Sequence[ValidationFinding], num_files: int) -> str:
    rules = [
        {
            "id": name, "shortDescription": {"text": text},
            "defaultConfiguration": {"level": "error" if severity is ERROR else "warning"},
        }
        for name, (severity, text) in RULES.items()
    ]  # fmt: skip
    places = {name: number for number, name in enumerate(RULES)}
    driver: dict[str, Any] = {"name": "medweave validate", "version": __version__, "rules": rules}
    results = [
        {
            "ruleId": finding.rule, "ruleIndex": places[finding.rule], "level": _word(finding),
            "message": {"text": _message(finding)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _from_top(finding.file)},
                        "region": {"startLine": finding.line, "startColumn": finding.column},
                    },
                    **({"logicalLocations": [{"fullyQualifiedName": finding.place}]} if finding.place else {}),
                }
            ],
        }
        for finding in findings
    ]  # fmt: skip
    document = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
