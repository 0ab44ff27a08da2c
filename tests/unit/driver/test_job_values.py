"""Values of a job file that do not fit its workflow, at the innermost place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medweave.validate.jobs import check_job
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.cwl_types import misfits, parse

FILE = {"class": "File", "path": "x"}
PAIR = {"type": "record", "fields": {"name": "string", "slices": "int[]", "note": "string?"}}


@pytest.mark.parametrize(
    ("value", "kind", "fields"),
    [
        ([FILE, 3, FILE, "x"], "File[]", [(1,), (3,)]),
        ("x", "File[]", [()]),
        ([[1], [1, "x"]], {"type": "array", "items": "int[]"}, [(1, 1)]),
        ([1, "x", 2], ["null", "int[]", "string"], [(1,)]),
        (["a", "b", 1], ["int[]", "string[]"], [(2,)]),  # nearest to a list of texts
        ({"name": "a", "slices": [1, None]}, PAIR, [("slices", 1)]),
        ({"slices": [1]}, PAIR, [()]),
        ([1, 2], "int[]", []),
        ([2**31 - 1, 2**31, -(2**31), -(2**31) - 1], "int[]", [(1,), (3,)]),
        ([2**31, 2**63 - 1, 2**63, -(2**63) - 1], "long[]", [(2,), (3,)]),
        ([2**64, 1.5], "double[]", []),
    ],
)
def test_a_value_is_wrong_where_its_item_is(value: Any, kind: Any, fields: list[Any]) -> None:
    assert [field for field, _, _ in misfits(value, parse(kind, False))] == fields


def findings_of(folder: Path, job: str, inputs: str) -> list[tuple[int, str, str]]:
    (folder / "x.cwl").write_text(f"cwlVersion: v1.2\nclass: Workflow\ninputs: {inputs}\n", encoding="utf-8")
    (folder / "job.yml").write_text(job, encoding="utf-8")
    reader = CwlReader()
    source, workflow = reader.mapping(folder / "job.yml", "job file"), reader.read_process(folder / "x.cwl", "workflow")
    return [(finding.line, finding.place, finding.rule) for finding in check_job(source, workflow, ())]


def test_an_item_of_a_list_has_its_own_line(tmp_path: Path) -> None:
    job = "scans:\n- {class: File, path: job.yml}\n- {class: File,\n   path: gone}\n- job.yml\n"
    assert findings_of(tmp_path, job, "{scans: 'File[]'}") == [(5, "scans[2]", "job-type")]
    assert findings_of(tmp_path, job.replace("- job.yml\n", ""), "{scans: 'File[]'}") == [
        (4, "scans[1].path", "job-file")
    ]
    job = "views: [axial,\n  coronal,\n  sagital]\n"
    kind = "{type: array, items: {type: enum, symbols: [axial, coronal, sagittal]}}"
    assert findings_of(tmp_path, job, f"{{views: {{type: {kind}}}}}") == [(3, "views[2]", "job-type")]


def test_an_integer_out_of_range_is_told_with_the_range(tmp_path: Path) -> None:
    (tmp_path / "x.cwl").write_text("cwlVersion: v1.2\nclass: Workflow\ninputs: {n: int, m: long}\n", encoding="utf-8")
    (tmp_path / "job.yml").write_text(f"n: {2**31}\nm: {2**63}\n", encoding="utf-8")
    reader = CwlReader()
    source, workflow = (
        reader.mapping(tmp_path / "job.yml", "job file"),
        reader.read_process(tmp_path / "x.cwl", "workflow"),
    )
    assert [finding.fix for finding in check_job(source, workflow, ())] == [
        "write an integer from -2147483648 to 2147483647, or give the input the type long",
        "write an integer from -9223372036854775808 to 9223372036854775807",
    ]


def test_a_null_is_the_default(tmp_path: Path) -> None:
    assert findings_of(tmp_path, "n: null\n", "{n: {type: int, default: 3}}") == []
    assert findings_of(tmp_path, "n: null\n", "{n: int}") == [(1, "n", "job-type")]


def test_the_expected_type_of_an_optional_input_is_written_without_the_sign_of_cwl(tmp_path: Path) -> None:
    (tmp_path / "x.cwl").write_text("cwlVersion: v1.2\nclass: Workflow\ninputs: {n: 'int?'}\n", encoding="utf-8")
    (tmp_path / "job.yml").write_text("n: many\n", encoding="utf-8")
    reader = CwlReader()
    source, workflow = reader.mapping(tmp_path / "job.yml", "job file"), reader.read_process(tmp_path / "x.cwl", "w")
    (finding,) = check_job(source, workflow, ())
    assert finding.expected == "a value of type int, or no value"
    assert finding.fix == "write a value of type int, or no value"
