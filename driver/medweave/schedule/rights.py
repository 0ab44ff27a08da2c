"""The Kubernetes rights that the driver of a StreamFlow file needs in its namespace when it uses its pod's account."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with StreamFlow

from medweave.doctor.rights import FILES, HELM, JOBS, PODS, Right, of_kinds
from medweave_core.documents.field_errors import fault_at
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.streamflow_bindings import our_deployments
from medweave_core.documents.yaml_documents import read_mapping

_KIND = re.compile(r"^apiVersion: (\S+)\s+kind: (\w+)", re.MULTILINE)


def rights_of(file: Path) -> list[Right]:
    """Return the rights, one per kind of resource.

    Raises:
        UserInputError: a chart is not a local folder, so its resources are unknown.
    """
    rights: list[Right] = []
    for name, deployment in our_deployments(read_mapping(file, "StreamFlow file")).items():
        config = deployment.get("config") or {}
        if not config.get("inCluster"):
            continue
        rights += PODS
        if deployment["type"] == "medweave.kubernetes":
            rights += JOBS if config.get("mode") == "job" else ()
            rights += of_kinds(_kinds_in_files([file.parent / path for path in config.get("files") or []]), FILES)
        else:
            rights += [Right("", "secrets", HELM), *of_kinds(_kinds_in_chart(file, name, config), HELM)]
    return joined(rights)


def joined(rights: Iterable[Right]) -> list[Right]:
    """Return the rights with the verbs of each resource joined."""
    verbs: dict[tuple[str, str], dict[str, None]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), {}).update(dict.fromkeys(right.verbs))
    return [Right(group, resource, tuple(allowed)) for (group, resource), allowed in verbs.items()]


def rules_of(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Return the rights as the chart's value `rights` expects them."""
    return [{"apiGroup": right.group, "resources": [right.resource], "verbs": list(right.verbs)} for right in rights]


def _kinds_in_files(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for item in [] if document is None else document.get("items") or [document]:
                yield item["apiVersion"], item["kind"]


def _kinds_in_chart(file: Path, name: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    chart = file.parent / str(config.get("chart", ""))
    if config.get("repo") or not (chart / "templates").is_dir():
        raise fault_at(
            file, ("deployments", name, "config", "chart"),
            "medweave cannot read this chart, so it does not know the permissions to request.",
            seen=shown(chart) if not config.get("repo") else str(config.get("chart")), expected="a chart folder",
            do="download it with `helm pull --untar`, or set place.kubernetes.values.rights",
        )  # fmt: skip
    for template in sorted((chart / "templates").rglob("*.yaml")):
        if "tests" not in template.parts:  # installed by `helm test` only
            yield from _KIND.findall(template.read_text(encoding="utf-8"))
