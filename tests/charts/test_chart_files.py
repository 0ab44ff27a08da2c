"""Checks of the charts' files; tests/hybrid/test_charts.py installs the charts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.charts import CHARTS, chart_name, ci_values, keys, leaf_keys, schema, templates, used, values
from support.cwl_files import load

UNITS = {
    r"^\^\[0-9\]\+": r"[Bb]ytes|cores",  # quantities
    "integer": r"Number|number|GPUs|Seconds|percent|port|id;|id,",
}
IMAGE = {"repository": "registry.example.org/x", "tag": "1"}
MINIMAL: dict[str, dict[str, Any]] = {
    "compss-cluster": {"engine": "ddp", "image": IMAGE},
    "segmentation-worker": {"image": IMAGE},
    "runner": {"image": IMAGE, "definition": {"existingClaim": "pipelines"}},
}


@pytest.fixture(params=CHARTS, ids=chart_name)
def chart(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def merged(base: Any, over: Any) -> Any:
    """Return values merged like Helm does: maps key by key, everything else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merged(base.get(key), inner) for key, inner in over.items()}}
    return over


def errors(chart: Path, document: dict[str, Any]) -> list[str]:
    problems = jsonschema.Draft7Validator(schema(chart)).iter_errors(merged(values(chart), document))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in problems]


def test_all_charts_are_seen() -> None:
    assert {path.name for path in CHARTS} == set(MINIMAL)


def test_every_key_is_described_with_its_unit_and_no_other_is_accepted(chart: Path) -> None:
    for key, inner in keys(schema(chart)):
        assert len(inner.get("description", "")) > 10, f"{key}: not described"
        if inner["type"] == "object":
            assert inner["additionalProperties"] in (False, {"type": "string"}), f"{key}: accepts anything"
        for kind, unit in UNITS.items():
            if inner["type"] == kind or re.match(kind, inner.get("pattern", "")):
                assert re.search(unit, inner["description"]), f"{key}: no unit in {inner['description']!r}"


def test_schema_and_templates_know_the_same_keys(chart: Path) -> None:
    known, read = {key for key, _ in keys(schema(chart))}, used(chart)
    assert read - known == set(), "read by a template, unknown to the schema"
    # A key counts as used when a template reads it, the block that it lies in, or a part of it.
    blocks = {path for path in read if not any(inner.startswith(f"{path}.") for inner in read)}
    leaves = {key for key in known if not any(other.startswith(f"{key}.") for other in known)}
    unread = {
        key
        for key in leaves
        if not any(key == block or key.startswith(f"{block}.") for block in blocks) and not key.startswith("image.")
    }
    assert unread == set(), "in the schema, read by no template"
    helper = (chart / "templates" / "_helpers.tpl").read_text()
    for key in ("digest", "tag", "repository"):
        assert f".{key}" in helper


def test_every_key_has_a_default_or_is_required(chart: Path) -> None:
    known = {key for key, _ in keys(schema(chart))}
    without = known - set(leaf_keys(values(chart), known))
    assert without <= {"image.repository", "image.digest", "image.tag"}
    assert values(chart).get("engine", "") == "", "the engine is never a silent choice"


def test_defaults_with_required_keys_are_valid(chart: Path) -> None:
    assert errors(chart, MINIMAL[chart.name]) == []
    assert errors(chart, {}) != []


def test_the_ci_files_are_valid_and_switch_every_key(chart: Path) -> None:
    known = {key for key, _ in keys(schema(chart))}
    switched: set[str] = set()
    for path in ci_values(chart):
        assert errors(chart, load(path)) == [], path.name
        switched |= set(leaf_keys(load(path), known))
    quantities = {key for key, inner in keys(schema(chart)) if "integer" in inner["type"] or "pattern" in inner}
    plain = {key for key in known if key.startswith(("worker.resources", "master.resources", "resources"))}
    assert known - switched - quantities - plain <= {"image.pullPolicy", "user"}


@pytest.mark.parametrize(
    ("name", "document", "key"),
    [
        ("compss-cluster", {"engine": "mpi"}, "engine"),
        ("compss-cluster", {"worker": {"replicas": "two"}}, "worker.replicas"),
        ("compss-cluster", {"worker": {"replicas": 0}}, "worker.replicas"),
        ("compss-cluster", {"worker": {"resources": {"limits": {"memory": "8 GB"}}}}, "worker.resources.limits.memory"),
        ("compss-cluster", {"workers": {}}, "workers"),
        ("compss-cluster", {"compss": {"sshPort": 22}}, "compss.sshPort"),
        ("compss-cluster", {"user": {"uid": 0}}, "user.uid"),
        ("compss-cluster", {"workdir": "work"}, "workdir"),
        ("compss-cluster", {"requiredModules": ["torch; rm -rf /"]}, "requiredModules.0"),
        ("segmentation-worker", {"replicas": 1.5}, "replicas"),
        ("segmentation-worker", {"image": {"digest": "latest"}}, "image.digest"),
        ("segmentation-worker", {"modelCache": {"exsistingClaim": "models"}}, "exsistingClaim"),
        ("runner", {"concurrencyPolicy": "forbid"}, "concurrencyPolicy"),
        ("runner", {"startingDeadlineSeconds": "1h"}, "startingDeadlineSeconds"),
        ("runner", {"definition": {"file": "/schedule.yml"}}, "definition.file"),
        ("runner", {"rights": [{"apiGroup": "", "resources": ["*"], "verbs": ["get"]}]}, "rights.0.resources"),
        ("runner", {"rights": [{"apiGroup": "", "resources": ["pods"], "verbs": ["escalate"]}]}, "rights.0.verbs"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(name: str, document: dict[str, Any], key: str) -> None:
    chart = next(path for path in CHARTS if path.name == name)
    (error,) = errors(chart, merged(MINIMAL[name], document))
    assert key in error


def test_one_object_per_file_named_by_its_kind_with_names_and_labels_from_the_helpers(chart: Path) -> None:
    for path in templates(chart):
        if path.suffix != ".yaml":
            continue
        text = path.read_text()
        (kind,) = re.findall(r"^kind: (\w+)$", text, flags=re.MULTILINE)
        assert path.stem == kind.lower()
        own = re.search(r"^metadata:\n  name: (.*)$", text, flags=re.MULTILINE)
        assert own is not None
        assert own[1].startswith("{{ include "), path.name
        assert "app.kubernetes.io/" not in text.replace("key: app.kubernetes.io/component", ""), path.name


def test_the_charts_share_their_labels_and_guards() -> None:
    first, *others = [(chart / "templates" / "_helpers.tpl").read_text() for chart in CHARTS]
    assert all(text == first for text in others)


def test_names_come_from_one_file(chart: Path) -> None:
    for path in templates(chart):
        if path.name not in {"_helpers-names.tpl", "_helpers.tpl", "NOTES.txt"}:
            assert ".Release.Name " not in path.read_text(), path.name


def test_container_names_are_unique_in_the_chart(chart: Path) -> None:
    text = "\n".join(path.read_text() for path in templates(chart))
    names = re.findall(r'Cluster\.container" \(dict "root" \. "part" "(\w+)"', text)
    names += re.findall(r'(?:Worker|runner)\.container" \(dict "root" \. "name" "(\w+)"', text)
    assert sorted(names) == sorted(set(names))
    assert set(names) in ({"master", "worker", "test"}, {"segment", "test"}, {"run", "receive", "test"})


def scripts() -> list[Path]:
    paths = [path for chart in CHARTS for path in sorted((chart / "files").iterdir())]
    return [path for path in paths if path.read_text().startswith(("#!/usr/bin/env bash", "# shellcheck"))]


@pytest.mark.parametrize("script", scripts(), ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_scripts_are_sound(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False, capture_output=True).returncode == 0
    assert "{{" not in script.read_text(), "a script is a separate file and no template"
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck: apt-get install shellcheck")
    ended = subprocess.run(
        ["shellcheck", "-x", "-P", str(script.parent), str(script)], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout


def test_each_finding_of_kube_score_that_stays_is_justified(chart: Path) -> None:
    rows = re.findall(r"^\| `([a-z-]+)`.*\| (.+) \|$", (chart / "README.md").read_text(), flags=re.MULTILINE)
    assert rows
    assert all(len(reason) > 40 for _, reason in rows)
