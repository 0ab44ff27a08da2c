"""The charts of the repository, as plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.cwl_files import ROOT, load

CHARTS = sorted(path.parent for path in (ROOT / "helm").glob("*/Chart.yaml"))


def chart_name(chart: Path) -> str:
    return chart.name


def schema(chart: Path) -> dict[str, Any]:
    document = json.loads((chart / "values.schema.json").read_text())
    assert isinstance(document, dict)
    return document


def values(chart: Path) -> dict[str, Any]:
    return load(chart / "values.yaml")


def ci_values(chart: Path) -> list[Path]:
    return sorted((chart / "ci").glob("*.yaml"))


def templates(chart: Path) -> list[Path]:
    return sorted(path for path in (chart / "templates").rglob("*") if path.is_file())


def keys(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (dotted key, its schema) of every key in the schema, inner ones too."""
    for name, inner in node.get("properties", {}).items():
        key = f"{prefix}{name}"
        yield key, inner
        yield from keys(inner, f"{key}.")


def leaf_keys(document: dict[str, Any], known: set[str], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys that a values file sets; a value that the schema takes as a whole is one key."""
    for name, inner in document.items():
        key = f"{prefix}{name}"
        yield key
        if isinstance(inner, dict) and any(path.startswith(f"{key}.") for path in known):
            yield from leaf_keys(inner, known, f"{key}.")


def used(chart: Path) -> set[str]:
    """Return the dotted keys that the templates read as `.Values.a.b`."""
    text = "\n".join(path.read_text() for path in templates(chart))
    return set(re.findall(r"\.Values\.([A-Za-z0-9.]+)", text))


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod that an object is, or creates (also indirectly); None for other kinds."""
    spec = document.get("spec") or {}
    if document["kind"] == "Pod":
        return dict(spec)
    template = spec.get("jobTemplate", {"spec": spec})["spec"].get("template")
    return None if template is None else dict(template["spec"])
