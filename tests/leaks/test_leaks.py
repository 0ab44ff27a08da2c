"""No marker in the inputs or configuration of real runs appears in their files."""

from __future__ import annotations

import base64
import gzip
import json
import runpy
import sqlite3
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.cwl_files import ROOT
from support.leak_markers import Inputs, Marker
from support.leak_runs import Scene
from support.leak_search import forms_of, search

LEAKS = runpy.run_path(str(ROOT / "tests" / "leaks" / "leaks.py"))
EXPECTED = LEAKS["EXPECTED"]
WORD = Marker(what="word", text="Quill ë/77", where="header")


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return LEAKS["act"](tmp_path_factory.mktemp("leaks").resolve())


@pytest.mark.pipeline
def test_none_of_fifty_markers_leaks(finished_runs: Any) -> None:
    scene, words = finished_runs
    wrong = {
        name: scene.output_of(name) for name, code in scene.codes.items() if code != LEAKS["EXPECTED"].get(name, 0)
    }
    assert wrong == {}
    assert LEAKS["markers_in_inputs"](scene, words) == {word.what for word in words}, (
        "the search finds each marker in the inputs"
    )
    assert len(words) == len({word.text for word in words}) == 50
    assert [str(leak) for leak in LEAKS["find_leaks"](scene, words)] == []


@pytest.mark.pipeline
def test_runs_end_as_expected(finished_runs: Any) -> None:
    scene, _ = finished_runs
    killed, resumed = (run for run in scene.runs if "-infer-" in run.name)
    assert "run.ended" not in (killed / "events.jsonl").read_text()
    assert json.loads((resumed / "events.jsonl").read_text().splitlines()[-1])["data"]["state"] == "completed"
    assert list((scene.folder / "results").rglob("lesion_mask.nii.gz")), "the masks were delivered"
    for run in scene.runs:
        assert (run / "work" / "engine.db").is_file(), "the engine's database was there to be searched"
    assert json.loads((scene.folder / "printed" / "notices").read_text())["outcome"] == "failed"
    assert list(scene.site_folder.rglob("*.npy")), "the other machine got data"


@pytest.mark.pipeline
def test_reidentification_map_stays_at_home(finished_runs: Any) -> None:
    scene, _ = finished_runs
    home = scene.folder / "runs" / ".home"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600
    led = {link.readlink() for link in home.iterdir() if link.is_symlink()}
    assert scene.inputs.job in led
    assert next(scene.inputs.root.glob("* scans")) in led
    files = json.loads((scene.folder / "results" / "home" / "way_back.json").read_text())["files"]
    assert all((next(scene.inputs.root.glob("* scans")) / name).is_file() for name in files), "real names lead back"


@pytest.mark.parametrize("form", forms_of(WORD.text))
def test_the_search_finds_each_form(form: str, tmp_path: Path) -> None:
    text, filler = WORD.text, {"base64, shifted by 1": "x", "base64, shifted by 2": "xy"}.get(form, "")
    written = {
        "text": text.replace("Quill", "qUILL").encode(),
        "UTF-16": text.encode("utf-16-le"),
        "UTF-16, big end first": text.encode("utf-16-be"),
        "JSON": json.dumps({"a": text}).encode(),
        "URL": b"file:///a/Quill%20%C3%AB%2F77.dcm",
        "hex": text.encode().hex().upper().encode(),
    }.get(form, base64.b64encode(f"{filler}{text} and more".encode()))
    (tmp_path / "file").write_bytes(b"before " + written + b" after")
    assert form in {leak.form for leak in search([tmp_path], [WORD])}


def test_the_search_looks_into_names_links_packages_and_databases(tmp_path: Path) -> None:
    text = "Quillfeather"
    (tmp_path / f"a {text}.txt").touch()
    (tmp_path / "packed.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "packed.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("inside.txt", text)
    (tmp_path / "link").symlink_to(f"/nowhere/{text}")
    with sqlite3.connect(tmp_path / "base.db") as database:
        database.execute("CREATE TABLE t (a TEXT)")
        database.execute("INSERT INTO t VALUES (?)", (text,))
    places = {
        leak.place.removeprefix("name of ").removeprefix("link ")
        for leak in search([tmp_path], [Marker(what="w", text=text, where="header")])
    }
    names = {Path(place).name for place in places}
    assert names >= {f"a {text}.txt", "packed.gz, unpacked", "packed.zip, inside.txt", "base.db, dumped", "link"}
    assert search([tmp_path], [WORD]) == []


def run_main(folder: Path, monkeypatch: pytest.MonkeyPatch, *, codes: dict[str, int]) -> tuple[int, dict[str, Any]]:
    """Return the exit code and summary of `make leaks`, where the runs wrote the files in the folder."""
    scene = Scene(
        folder=folder / "work", inputs=write_inputs(folder), site_folder=folder / "work" / "server", codes=codes
    )
    main = LEAKS["main"]
    monkeypatch.setitem(main.__globals__, "ROOT", folder)
    monkeypatch.setitem(main.__globals__, "act", lambda where: (scene, (WORD, ABSENT)))
    return main(), json.loads((folder / "build" / "leaks" / "summary.json").read_text())


ABSENT = Marker(what="absent", text="Absent-4499", where="header")


def write_inputs(folder: Path) -> Inputs:
    for name in ("work/runs/.home", "work/home", "data/user"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "data" / "job.json").write_text(WORD.text)
    return Inputs(root=folder / "data", job=folder / "data" / "job.json", user=folder / "data" / "user")


def test_summary_without_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    (tmp_path / "work/runs/.home/cohort-3f2a91c07be4").symlink_to(f"/data/{WORD.text}")
    (tmp_path / "work/home/way_back.json").write_text(WORD.text)
    code, summary = run_main(tmp_path, monkeypatch, codes=EXPECTED | {"resumed": 0})
    assert summary.pop("seconds") >= 0
    assert summary == {"markers": 1, "found": 0, "exit_codes": EXPECTED | {"resumed": 0}, "leaks": []}
    assert code == 0


@pytest.mark.parametrize("where", ["runs/x/file", "runs/x/.home/link", "printed/link"])
def test_leak_is_printed_and_fails(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "work" / where
    path.parent.mkdir(parents=True)
    if path.name == "link":
        path.symlink_to(f"/data/{WORD.text}")
    else:
        path.write_text(WORD.text)
    code, summary = run_main(tmp_path, monkeypatch, codes=EXPECTED)
    assert (code, summary["found"], len(summary["leaks"])) == (1, 1, 1)
    assert f"LEAK {summary['leaks'][0]}" in capsys.readouterr().out
    assert where in summary["leaks"][0]


def test_unexpected_exit_code_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, summary = run_main(tmp_path, monkeypatch, codes=EXPECTED | {"resumed": 1})
    assert (code, summary["found"]) == (1, 0)
    assert "unexpected exit codes: {'resumed': 1}" in capsys.readouterr().out
