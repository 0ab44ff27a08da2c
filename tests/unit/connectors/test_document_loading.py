"""CWL documents and job files as they are read for the engine: paths, characters, secondary files."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

import cwl_utils.parser.utils
import pytest
from streamflow.cwl.translator import _inject_value

from medweave_connectors.engine import file_values
from medweave_connectors.engine.loading import document_loading
from medweave_connectors.engine.loading.document_loading import uri_of
from medweave_core.documents.file_locations import (
    document_of,
    location_of,
    path_of,
    path_of_reference,
    with_quoted_paths,
)
from medweave_core.documents.secondary_files import missing_secondary_files
from medweave_core.documents.yaml_documents import parse_mapping, with_whole_characters

NAMES = ("50%41.txt", "a b.txt", "whale#1.txt", "what?.txt", "a+b.txt", "c:d.txt", "~x", "é😀.txt", "'q\".txt")


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_literal_and_a_location_a_uri(name: str) -> None:
    assert path_of({"class": "File", "path": f"data/{name}"}) == f"data/{name}"
    assert path_of({"class": "File", "location": location_of(f"/data/{name}")}) == f"/data/{name}"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"location": "a%20b.txt"}, "a b.txt"),
        ({"location": "x%2541", "path": "y"}, "x%41"),
        ({"location": "file://localhost/x"}, "/x"),
        ({"location": "http://host/x"}, None),
        ({"contents": "x"}, None),
        ({"path": None}, None),
    ],
)
def test_the_place_of_a_file(value: dict[str, Any], path: str | None) -> None:
    assert path_of(value) == path


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_reads_the_file_that_a_job_names(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cwl_utils.parser.utils, "load_inputfile_by_string", document_loading.load_inputfile_by_string)
    monkeypatch.setattr(cwl_utils.parser.utils, "load_inputfile_by_yaml", document_loading.load_inputfile_by_yaml)
    job = tmp_path / "hash#1 per%41 +x?" / "job+1#.yml"
    job.parent.mkdir()
    files = [{"class": "File", "path": name}, {"class": "Directory", "path": str(tmp_path / name)}]
    job.write_text(json.dumps({"files": files}), encoding="utf-8")
    loaded = _inject_value(document_loading.load_inputfile_by_uri("v1.2", str(job)))
    assert [path_of(file) for file in loaded["files"]] == [str(job.parent / name), str(tmp_path / name)]


@pytest.mark.parametrize("folder", ["plain", "hash#1", "per%41cent", "a+b", "what?"])
def test_a_document_may_lie_anywhere(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "t+1.cwl"
    path.parent.mkdir()
    document = {"cwlVersion": "v1.2", "class": "CommandLineTool", "inputs": {}, "outputs": {}, "id": "main"}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert document_loading.load_document_by_uri(str(path)).baseCommand is None
    # As `run` of another document names it.
    assert document_loading.load_document_by_uri(path.as_uri().replace("%2B", "+")).id.endswith("#main")


def test_a_name_after_the_path_of_a_document_is_a_process(tmp_path: Path) -> None:
    packed = tmp_path / "a#1" / "packed.cwl"
    packed.parent.mkdir()
    packed.touch()
    assert uri_of(f"{packed}#main") == f"{packed.as_uri()}#main"
    assert uri_of(str(packed)) == packed.as_uri()
    assert document_of("packed.cwl#main", packed.parent) == packed
    assert document_of("a#1/packed.cwl", tmp_path) == packed
    assert path_of_reference("tools/a%20b.cwl#main") == "tools/a b.cwl"


def test_a_file_staged_for_a_step_keeps_its_name() -> None:
    value = {"class": "File", "path": "/in/50%41.txt", "basename": "50%41.txt", "location": "file:///in/50%2541.txt"}
    assert file_values.adjust_input("/job", value, posixpath, "/in/50%41.txt", "/out/50%41.txt") is True
    assert path_of(value) == "/out/50%41.txt"


def test_a_character_of_two_escapes_is_one_character(tmp_path: Path) -> None:
    text = json.dumps({"a": "😀", "b": "\\ud83d\\ude00", "c": "é"})
    expected = json.loads(text)
    assert parse_mapping(text, tmp_path, "job file") == expected
    loaded = document_loading.load_inputfile_by_string("v1.2", text, "file:///job.json")
    assert {name: str(value) for name, value in loaded.items()} == expected
    not_json = "a: '\\ud83d\\ude00'\n"
    assert with_whole_characters(not_json) == not_json


def test_quoting_changes_paths_only() -> None:
    document = {
        "path": "50%",
        "f": [{"class": "File", "path": "50%", "secondaryFiles": [{"class": "File", "path": "#"}]}],
    }
    assert with_quoted_paths(document) == {
        "path": "50%",
        "f": [{"class": "File", "path": "50%25", "secondaryFiles": [{"class": "File", "path": "%23"}]}],
    }


FILE = {"class": "File", "path": "x.dat.gz"}
RECORD = {"type": "record", "fields": [{"name": "f", "type": "File", "secondaryFiles": ".idx"}]}


@pytest.mark.parametrize(
    ("value", "described", "missing"),
    [
        (FILE, {"secondaryFiles": ".idx"}, ["x.dat.gz.idx"]),
        (FILE, {"secondaryFiles": [{"pattern": "^^.hdr"}, "^.there"]}, ["x.hdr"]),
        (FILE, {"secondaryFiles": [".idx?", {"pattern": ".b", "required": False}, {"pattern": "$(self.x)"}]}, []),
        (FILE, {"secondaryFiles": [{"pattern": ".c", "required": "$(inputs.x)"}]}, []),
        (FILE | {"secondaryFiles": [{"class": "File", "path": "else/x.dat.gz.idx"}]}, {"secondaryFiles": ".idx"}, []),
        ([FILE, FILE], {"secondaryFiles": ".idx"}, ["x.dat.gz.idx", "x.dat.gz.idx"]),
        ({"f": FILE}, {"type": RECORD}, ["x.dat.gz.idx"]),
        ([{"f": FILE}], {"type": {"type": "array", "items": RECORD}}, ["x.dat.gz.idx"]),
        ({"class": "File", "path": "gone"}, {"secondaryFiles": ".idx"}, []),  # the file itself is missing
        ({"class": "Directory", "path": "."}, {"secondaryFiles": ".idx"}, []),
        (None, "File", []),
    ],
)
def test_missing_secondary_files(tmp_path: Path, value: Any, described: Any, missing: list[str]) -> None:
    for name in ("x.dat.gz", "x.dat.there"):
        (tmp_path / name).touch()
    assert [path.name for _, _, path in missing_secondary_files(value, described, tmp_path)] == missing
