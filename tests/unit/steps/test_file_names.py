"""Names that are not UTF-8, and paths of dataset.json that no file can have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.deidentification import ReidentificationMap
from medweave_steps.io.cohort.discovery import case_id_of_path, case_id_of_series
from support.checked import only_error
from support.dicom_builder import CtSeries, write_datasets
from support.identified import deidentify, way_back


@pytest.mark.parametrize("name", [b"M\xfcller", b"a\nb", b"\xff", "日本".encode(), b'"\\'])
def test_names_survive_a_contract(tmp_path: Path, name: bytes) -> None:
    text = codec.dumps(ReidentificationMap(patients=(), uids={}, files={os.fsdecode(name): "new"}))
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    read = codec.from_json(
        ReidentificationMap, json.loads((tmp_path / "a.json").read_text(encoding="utf-8")), where="test"
    )
    assert [os.fsencode(file) for file in read.files] == [name]


def test_case_ids_of_names() -> None:
    assert case_id_of_path("a.nii.gz") == case_id_of_series("a.nii.gz")
    assert case_id_of_path(os.fsdecode(b"\xfc.nii")) != case_id_of_path(os.fsdecode(b"\xfd.nii"))


def test_what_stays_at_home_names_the_source_files(tmp_path: Path) -> None:
    folder = os.fsdecode(b"M\xfcller")
    write_datasets(CtSeries().datasets(), tmp_path / "cohort" / folder)
    assert deidentify(tmp_path / "cohort") == 0
    assert {name.split("/")[0] for name in way_back(tmp_path / "cohort")["files"]} == {folder}


@pytest.mark.parametrize("image", ["a\0.nii.gz", "\ud800.nii.gz", "../a.nii.gz", "/a.nii.gz", 5, None])
def test_paths_that_no_file_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str], image: object) -> None:
    cohort = tmp_path / "cohort"
    cohort.mkdir()
    (cohort / "dataset.json").write_text(json.dumps({"training": [{"image": image, "label": "b.nii"}], "test": []}))
    assert deidentify(cohort) == 65
    assert "dataset.json is invalid" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dataset.json", "cohort_card.json", "splits.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"[" * 100_000, b"{", b"[]"])
def test_descriptions_that_are_no_json_object(tmp_path: Path, name: str, content: bytes) -> None:
    cohort = tmp_path / "cohort"
    write_datasets(CtSeries().datasets(), cohort)
    (cohort / name).write_bytes(content)
    assert deidentify(cohort) == 65
    if name == "splits.json":
        assert only_error(cohort).code == "splits-file"
