"""Errors in a file before the engine starts: file, line and element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave.runs.run_file import check_documents, check_file
from medweave.validate.command import validate
from medweave_core.documents.field_errors import FieldFault
from medweave_core.documents.yaml_documents import read_mapping
from medweave_core.errors import StepError, UserInputError
from support.engine import write_workflow

SCANS = "scans:\n- {class: File, path: one.nii.gz}\n- {class: File, path: two.nii.gz}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a file that can run: a workflow with an input of two existing files."""
    write_workflow(tmp_path, {"first": "echo"})
    changed(tmp_path, inputs={"scans": "File[]"})
    (tmp_path / "job.yml").write_text(SCANS, encoding="utf-8")
    for name in ("one.nii.gz", "two.nii.gz"):
        (tmp_path / name).touch()
    check_file(tmp_path / "streamflow.yml")
    return tmp_path


def changed(folder: Path, **keys: Any) -> None:
    document = json.loads((folder / "tiny.cwl").read_text(encoding="utf-8"))
    (folder / "tiny.cwl").write_text(json.dumps(document | keys, indent=1), encoding="utf-8")


def error_of(folder: Path) -> StepError:
    with pytest.raises(UserInputError) as caught:
        check_file(folder / "streamflow.yml")
    assert caught.value.exit_code == 65
    return caught.value


def bind(folder: Path, binding: str) -> None:
    file = folder / "streamflow.yml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("bindings: [", f"bindings: [{binding}, "), encoding="utf-8"
    )


def test_a_missing_input_file(folder: Path) -> None:
    (folder / "two.nii.gz").rename(folder / "to.nii.gz")
    error = error_of(folder)
    assert "job.yml:3: scans[1].path: no such file or folder." in error.what
    assert error.seen == str(folder / "two.nii.gz")
    assert "to.nii.gz" in error.do


def test_a_log_gets_no_name_of_an_input(folder: Path) -> None:
    (folder / "two.nii.gz").unlink()
    with pytest.raises(UserInputError) as caught:
        check_file(folder / "streamflow.yml", hides=True)
    assert "scans[1].path" in str(caught.value)
    assert "two.nii" not in str(caught.value)
    assert not isinstance(caught.value, FieldFault), "which has the path"


def test_an_input_at_a_site_is_not_looked_up_here(folder: Path) -> None:
    (folder / "two.nii.gz").unlink()
    bind(folder, "{port: /scans, target: {deployment: here, workdir: /scans}}")
    check_file(folder / "streamflow.yml")


def test_a_url_is_no_path(folder: Path) -> None:
    (folder / "job.yml").write_text("scans: [{class: File, location: 'https://example.org/x'}]\n", encoding="utf-8")
    check_file(folder / "streamflow.yml")
    (folder / "job.yml").write_text("scans: [{class: File, location: 'file:///no/such'}]\n", encoding="utf-8")
    assert "scans[0].location" in error_of(folder).what


def test_an_unknown_port(folder: Path) -> None:
    bind(folder, "{port: /scan, target: {deployment: here, workdir: /scans}}")
    error = error_of(folder)
    assert "bindings[0].port: tiny.cwl has no input '/scan'." in error.what
    assert (error.seen, error.do) == ("/scan", "write '/scans' (closest match)")


def test_an_invalid_workflow(folder: Path) -> None:
    changed(folder, requirments=[])
    error = error_of(folder)
    assert "tiny.cwl:" in error.what
    assert "requirments" in error.seen
    assert "requirements" in error.do


def test_an_invalid_tool_is_an_error_of_its_file(folder: Path) -> None:
    document = json.loads((folder / "tiny.cwl").read_text(encoding="utf-8"))
    tool = document["steps"]["first"]["run"]
    changed(folder, steps={"first": {"run": "tool.cwl", "in": {}, "out": ["result"]}})
    assert "tool.cwl" in error_of(folder).seen, "it does not exist"
    (folder / "tool.cwl").write_text(json.dumps({"cwlVersion": "v1.2", **tool}), encoding="utf-8")
    check_file(folder / "streamflow.yml")
    (folder / "tool.cwl").write_text(json.dumps({"cwlVersion": "v1.2", **tool, "basecommand": "x"}), encoding="utf-8")
    assert "tool.cwl:1" in error_of(folder).what


def test_an_unknown_output_of_a_step(folder: Path) -> None:
    changed(folder, outputs={"first_result": {"type": "File", "outputSource": "frist/result"}})
    error = error_of(folder)
    assert "frist/result" in error.seen
    assert "first/result" in error.do


def test_an_input_that_is_missing(folder: Path) -> None:
    changed(folder, inputs={"scans": "File[]", "threshold": "float", "note": "string?"})
    error = error_of(folder)
    assert "job.yml:1: required input 'threshold' of tiny.cwl is missing." in error.what
    assert (error.expected, error.do) == ("threshold: … (float)", "add 'threshold:'")
    job = (folder / "job.yml").read_text(encoding="utf-8")
    (folder / "job.yml").write_text(f"{job}treshold: 0.5\n", encoding="utf-8")
    error = error_of(folder)
    assert "job.yml:4: treshold: tiny.cwl has no input 'treshold'." in error.what
    assert error.do == "write 'threshold' (closest match)"


def test_an_input_of_another_type_is_the_same_error_as_of_validate(folder: Path) -> None:
    changed(folder, inputs={"scans": "File[]", "threshold": "float"})
    job = (folder / "job.yml").read_text(encoding="utf-8")
    (folder / "job.yml").write_text(f"threshold: high\n{job}", encoding="utf-8")
    error = error_of(folder)
    assert "job.yml:1: threshold: wrong type for input 'threshold'." in error.what
    assert (error.seen, error.expected) == ('"high"', "a value of type float")
    (finding,) = (finding for finding in validate([folder])[0] if finding.rule == "job-type")
    assert (finding.what, finding.seen, finding.expected, finding.fix) == (
        "wrong type for input 'threshold'.", error.seen, error.expected, error.do,
    )  # fmt: skip
    (folder / "job.yml").write_text(f"threshold: 1\n{job}- Doe-John.nii.gz\n", encoding="utf-8")
    assert "job.yml:5: scans[2]: wrong type for an item of input" in error_of(folder).what
    with pytest.raises(UserInputError, match=r"job file, line 5: scans\[2\]: wrong type") as caught:
        check_file(folder / "streamflow.yml", hides=True)
    assert "Doe" not in str(caught.value)


def test_a_workflow_with_inputs_and_no_job_file(folder: Path) -> None:
    file = folder / "streamflow.yml"
    file.write_text(file.read_text(encoding="utf-8").replace(", settings: job.yml", ""), encoding="utf-8")
    error = error_of(folder)
    assert "streamflow.yml:2: workflows.tiny.config: required input 'scans' of tiny.cwl is missing" in error.what
    assert "settings: job.yml" in error.do


def test_a_file_bound_for_a_site_is_checked_with_its_job_file(folder: Path) -> None:
    """`medweave run WORKFLOW --site SITE`: the file names a link instead of the job file."""
    file = folder / "streamflow.yml"
    document = read_mapping(file, "StreamFlow file")
    document["workflows"]["tiny"]["config"]["settings"] = "../no-such-link"
    (folder / "two.nii.gz").unlink()
    with pytest.raises(FieldFault, match=r"job\.yml:3: scans\[1\]\.path"):
        check_documents(document, file, job=folder / "job.yml")
