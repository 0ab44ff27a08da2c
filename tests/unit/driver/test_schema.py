"""`medweave schema`: schemas of all kinds of files in one place, and of a workflow's job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from medweave.cli.main_command import main
from medweave.cli.schema import schemas
from medweave.placement.bind import bind
from medweave.project.job_schema import job_schema, schema_of_inputs
from medweave.validate.jobs import check_job
from medweave_core.documents.cwl_model import process_in
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.source_documents import parse_strictly
from medweave_core.errors import UsageError, UserInputError
from support.cwl_files import ROOT, load
from support.sites import SITE, write_project

LINE = "# yaml-language-server: $schema="
JOBS = sorted([*ROOT.glob("workflows/*/jobs/*.yml"), *ROOT.glob("deployments/jobs/*.yml")])
STREAMFLOW_FILES = sorted([*ROOT.glob("streamflow*.yml"), *ROOT.glob("deployments/bindings/*.yml")])
TRAIN = ROOT / "workflows" / "lung-nodule-segmentation" / "train.cwl"
COHORT = {"class": "Directory", "path": "ct"}


def named_schema(path: Path) -> Path:
    """Return the file that the first line of a YAML file names as its schema."""
    first = path.read_text().splitlines()[0]
    assert first.startswith(LINE), path
    return (path.parent / first.removeprefix(LINE)).resolve()


def is_valid(value: Any, schema: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def takes(value: Any, kind: Any, **more: Any) -> bool:
    """Return whether an input of a type accepts a value."""
    document = {"$namespaces": {"edam": "http://edamontology.org/"}, "inputs": {"x": {"type": kind, **more}}}
    source = parse_strictly(Path("a.cwl"), json.dumps(document), "CWL document")
    schema = schema_of_inputs(process_in(source), "a.cwl")
    jsonschema.Draft202012Validator.check_schema(schema)
    return is_valid({"x": value}, schema)


@pytest.mark.parametrize("name", schemas())
def test_each_schema_is_printed_and_is_one_of_2020_12(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(printed)


def test_without_a_name_the_names_are_listed_with_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {*schemas(), "WORKFLOW.cwl"}
    assert {"site", "streamflow", "medweave.slurm", "event", "run-report"} <= set(schemas())
    assert all(text.strip().endswith(".") and len(text.split()) >= 3 for text in lines.values())


def test_the_schema_of_a_workflow_is_that_of_its_job_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", str(TRAIN)]) == 0
    assert capsys.readouterr().out == (TRAIN.parent / "jobs" / "train.schema.json").read_text()


def test_an_unknown_name_is_an_error_with_the_closest_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "streamflw"]) == UsageError.exit_code
    assert "write 'streamflow' (closest match)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seen"), [(None, "no such workflow"), ("a: [", "valid YAML|not a CWL"), ("a: 1", "not a CWL")]
)
def test_a_file_that_is_no_workflow_has_no_schema_of_job_files(tmp_path: Path, text: str | None, seen: str) -> None:
    path = tmp_path / "x.cwl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserInputError, match=seen):
        job_schema(path)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_committed_job_file_names_its_schema_and_is_valid(path: Path) -> None:
    schema = named_schema(path)
    assert schema.name == f"{path.stem.rpartition('-')[2]}.schema.json"
    jsonschema.validate(load(path), json.loads(schema.read_text()), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", STREAMFLOW_FILES, ids=lambda path: path.name)
def test_a_committed_streamflow_file_names_its_schema_and_is_valid(path: Path) -> None:
    schema = named_schema(path)
    assert schema == ROOT / "driver/medweave/streamflow.schema.json"
    jsonschema.validate(load(path), json.loads(schema.read_text()), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "change",
    [
        {"cohrt": COHORT},
        {"cohort": "ct"},
        {"cohort": {"class": "File", "path": "ct"}},
        {"cohort": {"class": "Directory", "pth": "ct"}},
        {"cohort": None},
        {"distributed_engine": "dpp"},
        {"training_ranks": "2"},
        {"training_ranks": 1.5},
        {"spacing_mm": 1.0},
        {"identified": "yes"},
        {"pseudonym_key": {"class": "File", "path": "k", "format": "http://edamontology.org/format_3464"}},
    ],
    ids=str,
)
def test_a_wrong_job_file_is_invalid_by_its_schema_and_by_validate(change: dict[str, Any], tmp_path: Path) -> None:
    schema, right = job_schema(TRAIN), {"cohort": COHORT}
    assert is_valid(right, schema)
    assert not is_valid(right | change, schema)
    (tmp_path / "ct").mkdir()
    (tmp_path / "k").touch()
    job = tmp_path / "x-train.yml"
    job.write_text(json.dumps(right | change))
    if "pth" not in str(change):  # `validate` leaves the keys of a File to the engine
        reader = CwlReader()
        assert list(check_job(reader.mapping(job, "job file"), reader.read_process(TRAIN, "workflow"), ()))


def test_an_input_without_a_default_is_required() -> None:
    assert job_schema(TRAIN)["required"] == ["cohort"]
    assert not is_valid({}, job_schema(TRAIN))


def test_each_type_of_cwl_takes_what_it_says() -> None:
    record = {"type": "record", "fields": {"a": "int", "b": "string?"}}
    assert takes(3, "long")
    assert not takes(True, "int")
    assert takes(3, "double")
    assert not takes("3", "double")
    assert takes(None, "int?")
    assert takes([1.5, 2], "float[]?")
    assert takes([[1], []], {"type": "array", "items": "int[]"})
    assert not takes([[1], ["a"]], {"type": "array", "items": "int[]"})
    assert takes({"a": 1}, record)
    assert not takes({"b": "x"}, record)
    assert takes("anything", "Any")
    assert not takes(None, "Any")
    assert takes({"class": "File", "contents": "x"}, "File")
    assert not takes({"class": "File"}, "File")
    assert takes({"class": "Directory", "location": "s3://b/x"}, ["Directory", "File"])
    assert (
        takes({"class": "File", "path": "x", "format": "edam:format_3464"}, "File[]", format="edam:format_3464")
        is False
    )
    assert takes([{"class": "File", "path": "x", "format": "edam:format_3464"}], "File[]", format="edam:format_3464")


def test_bind_names_the_schema_next_to_the_site_files_schema(tmp_path: Path) -> None:
    project = write_project(tmp_path, f"{LINE}../../schemas/site.schema.json\n{SITE}")
    workflow, output = project / "workflows" / "lung" / "train.cwl", project / "bound" / "streamflow.yml"
    assert bind(workflow, "two", output).splitlines()[0] == f"{LINE}../schemas/streamflow.schema.json"


@pytest.mark.parametrize("line", ["", f"{LINE}https://example.org/site.schema.json\n", f"{LINE}other.json\n"], ids=repr)
def test_bind_guesses_no_schema(tmp_path: Path, line: str) -> None:
    project = write_project(tmp_path, line + SITE)
    assert LINE not in bind(project / "workflows" / "lung" / "train.cwl", "two", project / "bound" / "streamflow.yml")
