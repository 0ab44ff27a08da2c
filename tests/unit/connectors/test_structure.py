"""A StreamFlow file that is wrong: what plain `streamflow run` says of it before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave_core.documents.line_numbers import ThisRun, placed
from support.engine import FILE, run, write_workflow
from support.engine_file import engine_file

WRONG = [
    (("v1.0", "v9"), ":1: version: unknown version of the StreamFlow file format", "write version: v1.0"),
    (("workflows:", "workflws:"), ": workflws: there is no such key.", "write 'workflows' (closest match)"),
    (("medweave.local", "medweave.lcal"), ".here.type: invalid value.", "write 'medweave.local'"),
    (("deployment: here", "deployment: hre"), ".target.deployment: there is no deployment 'hre'.", "write 'here'"),
    (("tiny.cwl", "tny.cwl"), ".config.file: there is no such CWL workflow.", "write 'tiny.cwl' (closest match)"),
    (("step: /,", "step: tiny,"), "bindings[0].step: the path must start", "write step: /tiny"),
    ((", target: {deployment: here}", ""), "bindings[0]: the key 'target' is missing.", "add 'target:'"),
    (("version: v1.0", "version: [v1.0"), ": this StreamFlow file is not valid YAML.", "correct this line"),
]


@pytest.mark.parametrize(("change", "place", "do"), WRONG, ids=[change[1] or "no target" for change, _, _ in WRONG])
def test_errors_name_line_and_field_without_a_traceback(
    tmp_path: Path, change: tuple[str, str], place: str, do: str
) -> None:
    assert change[0] in FILE
    write_workflow(tmp_path, {"first": "true"}, file=FILE.replace(*change))
    ended = run(tmp_path)
    assert ended.exit_code == 1
    first, *rest = ended.stderr.splitlines()
    assert " streamflow.yml:" in first
    assert place in first
    assert do in rest[-1]
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.parametrize(("make", "seen"), [(None, "nothing at this path"), ("mkdir", "a folder")])
def test_an_unreadable_file_is_reported_without_a_traceback(tmp_path: Path, make: str | None, seen: str) -> None:
    if make:
        (tmp_path / "streamflow.yml").mkdir()
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert f"seen:     {seen}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_a_site_finds_wrong_later_has_its_line_too(tmp_path: Path) -> None:
    config = {"nodes": ["127.0.0.1"], "username": "me", "sshKey": "gone"}
    file = engine_file({"here": {"type": "medweave.ssh", "config": config, "workdir": "/scratch/me"}})
    write_workflow(tmp_path, {"first": "true"}, file=file)
    ended = run(tmp_path)
    assert ended.exit_code == 1
    assert "streamflow.yml:3: deployments.here.config.sshKey" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_only_a_field_of_the_runs_file_gets_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed("deployments.hpc.config: no.") == "deployments.hpc.config: no.", "there is no run"
    (tmp_path / "sf.yml").write_text(
        "version: v1.0\ndeployments:\n  hpc:\n    config: {services: {gpu: {}},\n      nodes: [a, b]}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ThisRun, "file", tmp_path / "sf.yml")
    assert placed("deployments.hpc.config.nodes[1]: no.") == "sf.yml:5: deployments.hpc.config.nodes[1]: no."
    assert placed("deployments.hpc.config.services.gpu.file: no.").startswith(
        "sf.yml:4: deployments.hpc.config.services.gpu.file:"
    )
    assert placed("deployments.hpc: no.") == "sf.yml:3: deployments.hpc: no."
    for text in ("deployments are none.", "a copy from hpc", "sf.yml:5: deployments.hpc: no."):
        assert placed(text) == text
