"""Working directories as they stand in streamflow.yml, and as the engine must get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.placement.workdirs import resolve, resolve_workdirs
from medweave_steps.contracts.errors import UsageError


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
    found = config(tmp_path, text)
    resolve_workdirs(found, tmp_path / "default")
    assert found["deployments"]["here"]["workdir"] == expected.format(base=tmp_path, home="/home/me")


def test_without_a_workdir_the_runs_own_is_taken(tmp_path: Path) -> None:
    # The engine's own default, /tmp/streamflow, is shared by all users of a machine.
    found = config(tmp_path, None)
    resolve_workdirs(found, tmp_path / "runs/r/work")
    assert found["deployments"]["here"]["workdir"] == str(tmp_path / "runs/r/work")


def test_targets_are_resolved_and_other_types_are_left_alone(tmp_path: Path) -> None:
    bindings = [
        {"step": "/", "target": {"deployment": "here", "workdir": "w1"}},
        {"step": "/a", "target": [{"deployment": "here", "workdir": "w2"}, {"deployment": "far", "workdir": "w3"}]},
    ]
    found = config(tmp_path, "w", workflows={"lung": {"bindings": bindings}})
    found["deployments"]["far"] = {"type": "ssh", "config": {}, "workdir": "remote"}
    resolve_workdirs(found, tmp_path)
    assert bindings[0]["target"]["workdir"] == str(tmp_path / "w1")  # type: ignore[index]
    assert [t["workdir"] for t in bindings[1]["target"]] == [str(tmp_path / "w2"), "w3"]  # type: ignore[index]
    assert found["deployments"]["far"]["workdir"] == "remote"


def test_a_variable_without_a_value_is_an_error_that_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTHING", raising=False)
    with pytest.raises(UsageError, match=r"deployments\.here\.workdir: the variable NOTHING has no value"):
        resolve_workdirs(config(tmp_path, "${NOTHING}/w"), tmp_path)


def test_values_are_not_expanded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", "a${HOME}b")
    assert resolve("${ODD}", tmp_path, where="x") == str(tmp_path / "a${HOME}b")
