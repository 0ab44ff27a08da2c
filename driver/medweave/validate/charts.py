"""Helm charts: their files, their schema, and the values of deployments."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medweave.validate.findings import ValidationFinding, finding_at, no_json
from medweave.validate.places import chart_of, finding_of
from medweave.validate.quantities import above_limits
from medweave.validate.repository import CHART_FILE, Repository
from medweave_core.documents.field_errors import faults
from medweave_core.documents.line_numbers import FieldPath
from medweave_core.documents.source_documents import SourceDocument
from medweave_core.errors import BackendMissingError

SCHEMA_FILE, VALUES_FILE = "values.schema.json", "values.yaml"
NEEDED = ("apiVersion", "name", "version")
HELM_LIMIT_S = 60.0
KUBERNETES = (1, 34, 0)  # version of the testbed, for charts without a lower bound
_LINT_ERROR = re.compile(r"^\[ERROR\] (.*(?:\n(?!\[|==>).+)*)", re.MULTILINE)
_VERSION = re.compile(r"(>=|<=|!=|[<>~^=]|(?<=\s)-(?=\s))?\s*v?(\d+)(?:\.(\d+))?(?:\.(\d+))?[\w.*+-]*")
_PLACE = re.compile(r"([\w./-]+\.(?:ya?ml|tpl|txt|json)):(\d+)")


def merged(base: Any, over: Any) -> Any:
    """Return values merged as by Helm: mappings key by key, other values replaced; null removes a key."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        both = {**base, **{key: merged(base.get(key), inner) for key, inner in over.items()}}
        return {key: value for key, value in both.items() if value is not None or key not in over}
    return over


def check_chart(source: SourceDocument, repository: Repository) -> Iterator[ValidationFinding]:
    """Yield the findings of a chart: Chart.yaml, schema, default values and test values (`ci/`)."""
    folder = source.path.parent
    for key in NEEDED:
        if not source.data.get(key):
            yield finding_at(
                source,
                "chart",
                (),
                f"the key '{key}' is missing.",
                seen=", ".join(source.data),
                expected=f"{key}: …",
                fix=f"add '{key}:'",
            )
    if source.data.get("name") not in (None, folder.name):
        yield finding_at(
            source,
            "chart",
            ("name",),
            "the name of a chart must equal the name of its folder.",
            seen=str(source.data["name"]),
            expected=folder.name,
            fix=f"write name: {folder.name}",
        )
    for name in (VALUES_FILE, "templates"):
        if not (folder / name).exists():
            yield finding_at(
                source, "chart", (), f"the chart has no {name}.", seen="nothing", expected=str(name), fix=f"add {name}"
            )
    schema, schema_finding = schema_of(folder)
    if schema_finding is not None:
        yield schema_finding
    if schema is None:
        return
    values = repository.source(folder / VALUES_FILE)
    defaults = values.data if values else {}
    if values is not None:
        # A key without a default must be set at installation: it may be missing here.
        yield from (
            finding_of(values, fault, "chart-value")
            for fault in faults(defaults, schema, values.path, ())
            if " is missing" not in fault.problem
        )
    for path in sorted((folder / "ci").glob("*.yaml")):
        document = repository.source(path)
        if document is not None:
            yield from check_values(document, (), document.data, defaults, schema)


def schema_of(folder: Path) -> tuple[dict[str, Any] | None, ValidationFinding | None]:
    """Return the schema of a chart's values, or None, and the finding of a schema that cannot be used."""
    import jsonschema

    path = folder / SCHEMA_FILE
    if not path.is_file():
        return None, None
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        schema: dict[str, Any] = json.loads(text)
        if not isinstance(schema, dict):
            return None, ValidationFinding(
                file=path, line=1, column=1, rule="chart", what="this is not a JSON Schema for chart values.",
                seen=text.strip()[:80], expected="a mapping: a schema of type object", fix="write a schema, or remove the file",
            )  # fmt: skip
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except json.JSONDecodeError as error:
        return None, no_json(path, error, "chart")
    except jsonschema.SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        lines = text.splitlines()
        word = next((str(part) for part in reversed(error.absolute_path) if isinstance(part, str)), "")
        line = next(
            (
                number
                for number, text in enumerate(lines, 1)
                if f'"{word}"' in text and json.dumps(error.instance) in text
            ),
            1,
        )
        return None, ValidationFinding(
            file=path,
            line=line,
            column=1,
            field=tuple(error.absolute_path),
            rule="chart",
            what=f"this is not a valid JSON Schema: {error.message[:120]}.",
            seen=f"{place}: {json.dumps(error.instance)[:80]}",
            expected="a JSON Schema",
            fix="correct this keyword",
        )
    return schema, None


def check_values(
    source: SourceDocument, field: FieldPath, values: Any, defaults: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationFinding]:
    """Yield the findings of the values for a chart in a document."""
    all_values = merged(defaults, values or {})
    for fault in faults(all_values, schema, source.path, field):
        inside = fault.field[len(field) :]
        if "${" in json.dumps(_at(all_values, inside), default=str):
            continue  # known when the run starts
        if " is missing" in fault.problem or inside == () or _at(values, inside) is not None:
            yield finding_of(source, fault, "chart-value")
    for inside, request, most in above_limits(all_values):
        limit = (*inside[:-2], "limits", inside[-1])
        if _at(values, inside) is not None or _at(values, limit) is not None:
            yield finding_at(
                source, "chart-value", (*field, *(inside if _at(values, inside) is not None else limit)),
                f"the container requests more {inside[-1]} than its limit; Kubernetes refuses such a pod.",
                seen=f"requests {request}, limits {most}",
                expected=f"a request of at most {most}", fix="correct the request or the limit",
            )  # fmt: skip


def check_deployed_values(source: SourceDocument, repository: Repository) -> Iterator[ValidationFinding]:
    """Yield the findings of values in a site or StreamFlow file for charts of this repository."""
    for name, deployment in (source.data.get("deployments") or {}).items():
        chart = chart_of(deployment, source.path.parent)
        schema = schema_of(chart)[0] if chart else None
        if chart is None or schema is None:
            continue
        config = deployment.get("config") or {}
        values = repository.source(chart / VALUES_FILE)
        defaults: Any = values.data if values else {}
        listed = config.get("yamlValues")
        for text in listed if isinstance(listed, list) else ():
            more = repository.source((source.path.parent / str(text)).resolve())
            defaults = merged(defaults, more.data if more else {})
        if "engine" in config:
            defaults = merged(defaults, {"engine": config["engine"]})
        yield from check_values(
            source, ("deployments", name, "config", "values"), config.get("values"), defaults, schema
        )


def _at(value: Any, field: FieldPath) -> Any:
    for part in field:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def check_with_helm(repository: Repository) -> Iterator[ValidationFinding]:
    """Yield the errors of `helm lint` and `helm template` for each chart with each of its test values."""
    helm = shutil.which("helm")
    if helm is None:
        raise BackendMissingError(
            "the program 'helm' is not installed.",
            seen="helm is not on the PATH",
            expected="Helm 3 or 4, for --helm",
            do="install helm, or remove --helm",
        )
    for source in repository.charts.values():
        folder = source.path.parent
        kube = ["--kube-version", kube_version(str(source.data.get("kubeVersion") or ""))]
        for path in sorted((folder / "ci").glob("*.yaml")) or [folder / VALUES_FILE]:
            for words in (["lint", str(folder)], ["template", "validate", str(folder)]):
                process = subprocess.run(
                    [helm, *words, *kube, "--values", str(path)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=HELM_LIMIT_S,
                )
                if process.returncode:
                    yield _refused(folder, words[0], path, _reason(process))
                    break


def kube_version(constraint: str) -> str:
    """Return a version of Kubernetes that a chart accepts: Helm's default depends on its build, down to v1.20.

    Args:
        constraint: `kubeVersion` of the chart: `>=1.27.0-0`, `1.27 - 1.33`, `~1.30 || ^1.32`; empty for any.
    """
    lowest, highest = None, None
    for sign, major, minor, patch in _VERSION.findall(constraint.partition("||")[0]):
        version = (int(major), int(minor or 0), int(patch or 0))
        if sign in (">=", ">"):
            above = (*version[:2], version[2] + 1) if patch else (version[0], version[1] + 1, 0)
            lowest = above if sign == ">" else version
        elif sign in ("<", "<=", "-"):
            highest = version if sign != "<" else (version[0], max(version[1] - 1, 0), 0)
        elif sign != "!=":  # ~1.30, ^1.30, 1.30: near to it
            lowest = highest = version
    if lowest is None:
        chosen = min(KUBERNETES, highest or KUBERNETES)
    else:
        chosen = lowest if highest is not None else max(KUBERNETES, lowest)
    return ".".join(map(str, chosen))


def _reason(process: subprocess.CompletedProcess[str]) -> str:
    """Return the error of Helm: `lint` prints it to stdout, and the number of failed charts to stderr."""
    lint_error = _LINT_ERROR.search(process.stdout)
    if lint_error is not None:
        return " ".join(lint_error[1].split())
    lines = (process.stderr + process.stdout).splitlines()
    begin = next((number for number, line in enumerate(lines) if "rror" in line), None)
    return " ".join(" ".join(lines[begin:]).split()) if begin is not None else f"exit code {process.returncode}"


def _refused(folder: Path, verb: str, values: Path, message: str) -> ValidationFinding:
    place = _PLACE.search(message)
    name = place[1] if place else message.partition(":")[0]
    inside = folder / name.removeprefix(f"{folder.name}/")
    return ValidationFinding(
        file=inside if inside.is_file() else folder / CHART_FILE,
        line=int(place[2]) if place and inside.is_file() else 1,
        column=1,
        rule="chart",
        what=f"`helm {verb}` rejects the chart with {values.relative_to(folder)}.",
        seen=message[:200],
        expected="exit code 0",
        fix="correct the file that the message names",
    )
