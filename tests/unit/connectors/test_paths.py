"""Paths and variables in streamflow.yml, and their values for the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave_core.documents.streamflow_paths import resolve, resolve_paths
from medweave_core.errors import UsageError


def config(tmp_path: Path, workdir: str | None, **more: Any) -> dict[str, Any]:
    deployment = {"type": "medweave.local", "config": {}} | ({"workdir": workdir} if workdir else {})
    return {"path": str(tmp_path / "streamflow.yml"), "deployments": {"here": deployment}} | more


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("work", "{base}/work"),
        ("./a/../b", "{base}/b"),
        ("/scratch/x", "/scratch/x"),
        ("~/w", "{home}/w"),
        ("${SCRATCH}/w", "/s/w"),
    ],
)
def test_paths_start_at_the_file_and_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv("SCRATCH", "/s")
    monkeypatch.setenv("HOME", "/home/me")
    document = config(tmp_path, text)
    resolve_paths(document, tmp_path / "default", {})
    assert document["deployments"]["here"]["workdir"] == expected.format(base=tmp_path, home="/home/me")


def test_without_a_workdir_the_default_is_used(tmp_path: Path) -> None:
    # The engine's own default, /tmp/streamflow, is shared by all users of a machine.
    document = config(tmp_path, None)
    resolve_paths(document, tmp_path / "runs/r/work", {})
    assert document["deployments"]["here"]["workdir"] == str(tmp_path / "runs/r/work")


def test_targets_are_resolved_and_other_types_are_unchanged(tmp_path: Path) -> None:
    bindings = [
        {"step": "/", "target": {"deployment": "here", "workdir": "w1"}},
        {"step": "/a", "target": [{"deployment": "here", "workdir": "w2"}, {"deployment": "far", "workdir": "w3"}]},
    ]
    document = config(tmp_path, "w", workflows={"lung": {"bindings": bindings}})
    document["deployments"]["far"] = {"type": "ssh", "config": {}, "workdir": "remote"}
    resolve_paths(document, tmp_path, {})
    assert bindings[0]["target"]["workdir"] == str(tmp_path / "w1")  # type: ignore[index]
    assert [t["workdir"] for t in bindings[1]["target"]] == [str(tmp_path / "w2"), "w3"]  # type: ignore[index]
    assert document["deployments"]["far"]["workdir"] == "remote"


def test_a_variable_without_a_value_is_an_error_that_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTHING", raising=False)
    with pytest.raises(UsageError, match=r"deployments\.here\.workdir: variable NOTHING is not set"):
        resolve_paths(config(tmp_path, "${NOTHING}/w"), tmp_path, {})


def test_values_are_not_expanded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "a${HOME}b")
    assert resolve("${ODD}", tmp_path, where="x") == str(tmp_path / "a${HOME}b")


SITE = {
    "properties": {
        "key": {"type": "string", "format": "path"},
        "chart": {"type": "string", "format": "path"},
        "hosts": {"type": "array", "items": {"type": "string"}},
        "values": {"type": "array", "items": {"type": "string", "format": "path"}},
        "services": {"additionalProperties": {"properties": {"template": {"format": "path"}, "nodes": {}}}},
    }
}


def site(tmp_path: Path, settings: dict[str, Any], workdir: str | None = "/scratch/me") -> dict[str, Any]:
    deployment = {"type": "medweave.site", "config": settings} | ({"workdir": workdir} if workdir else {})
    return {"path": str(tmp_path / "bound.yml"), "deployments": {"far": deployment}}


def test_settings_that_are_paths_start_at_the_file_and_all_may_hold_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("LOGIN", "login.example.org:2222")
    monkeypatch.chdir("/")  # the caller's directory plays no part
    settings = {
        "key": "~/.ssh/id_ed25519",
        "chart": "oci://registry.example.org/charts/x",
        "hosts": ["${LOGIN}"],
        "values": ["../values.yaml", "/abs/v.yaml"],
        "services": {"gpu": {"template": "gpu.sh", "nodes": 2}},
    }
    document = site(tmp_path, settings)
    resolve_paths(document, tmp_path, {"medweave.site": SITE})
    assert document["deployments"]["far"]["config"] == {
        "key": "/home/me/.ssh/id_ed25519",
        "chart": "oci://registry.example.org/charts/x",
        "hosts": ["login.example.org:2222"],
        "values": [str(tmp_path.parent / "values.yaml"), "/abs/v.yaml"],
        "services": {"gpu": {"template": str(tmp_path / "gpu.sh"), "nodes": 2}},
    }


@pytest.mark.parametrize(
    ("workdir", "seen"), [(None, "no workdir"), ("work", "work"), ("/a b", "/a b"), ("~/w", "~/w")]
)
def test_a_site_needs_an_absolute_workdir(tmp_path: Path, workdir: str | None, seen: str) -> None:
    # Without one the engine takes /tmp/streamflow, which all users of a machine share; one with a blank breaks its commands.
    with pytest.raises(UsageError, match=r"bound\.yml: deployments\.far\.workdir: .* need a work directory") as caught:
        resolve_paths(site(tmp_path, {}, workdir), tmp_path, {})
    assert caught.value.seen == seen


def test_a_wrapping_deployment_may_inherit_its_workdir(tmp_path: Path) -> None:
    document = site(tmp_path, {})
    document["deployments"]["queue"] = {"type": "medweave.slurm", "config": {}, "wraps": "far"}
    resolve_paths(document, tmp_path, {})
    assert "workdir" not in document["deployments"]["queue"]


def test_a_variable_in_a_setting_without_a_value_is_named_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTHING", raising=False)
    with pytest.raises(UsageError, match=r"bound\.yml: deployments\.far\.config\.hosts\[1\]: variable NOTHING"):
        resolve_paths(site(tmp_path, {"hosts": ["a", "${NOTHING}"]}), tmp_path, {"medweave.site": SITE})


def test_a_variable_without_a_value_is_reported_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTHING", raising=False)
    (tmp_path / "bound.yml").write_text(
        "deployments:\n  far:\n    config:\n      hosts:\n      - a\n      - ${NOTHING}\n"
    )
    with pytest.raises(UsageError, match=r"bound\.yml:6: deployments\.far\.config\.hosts\[1\]: variable NOTHING"):
        resolve_paths(site(tmp_path, {"hosts": ["a", "${NOTHING}"]}), tmp_path, {"medweave.site": SITE})
