"""Of what is planted in the inputs and the configuration of real runs nothing is found in what they write."""

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
from support.leak_runs import Scene
from support.leak_search import forms_of, search
from support.planted import Inputs, Planted

LEAKS = runpy.run_path(str(ROOT / "tests" / "leaks" / "leaks.py"))
EXPECTED = LEAKS["EXPECTED"]
WORD = Planted(what="word", text="Quill ë/77", where="header")


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return LEAKS["act"](tmp_path_factory.mktemp("leaks").resolve())


@pytest.mark.pipeline
def test_nothing_of_fifty_is_found(acted: Any) -> None:
    scene, words = acted
    wrong = {name: scene.said(name) for name, code in scene.codes.items() if code != LEAKS["EXPECTED"].get(name, 0)}
    assert wrong == {}
    assert LEAKS["reached"](scene, words) == {each.what for each in words}, "the search finds them where they are"
    assert len(words) == len({each.text for each in words}) == 50
    assert [str(leak) for leak in LEAKS["found"](scene, words)] == []


@pytest.mark.pipeline
def test_the_runs_were_as_they_should_be(acted: Any) -> None:
    scene, _ = acted
    killed, resumed = (run for run in scene.runs if "-infer-" in run.name)
    assert "run.ended" not in (killed / "events.jsonl").read_text()
    assert json.loads((resumed / "events.jsonl").read_text().splitlines()[-1])["data"]["state"] == "completed"
    assert list((scene.folder / "results").rglob("lesion_mask.nii.gz")), "the masks were delivered"
    for run in scene.runs:
        assert (run / "work" / "engine.db").is_file(), "the engine's database was there to be searched"
    assert json.loads((scene.folder / "said" / "notices").read_text())["outcome"] == "failed"
    assert list(scene.site_folder.rglob("*.npy")), "the other machine got data"


@pytest.mark.pipeline
def test_the_way_back_stays_at_home(acted: Any) -> None:
    scene, _ = acted
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
    found = {
        leak.place.removeprefix("name of ").removeprefix("link ")
        for leak in search([tmp_path], [Planted(what="w", text=text, where="header")])
    }
    names = {Path(place).name for place in found}
    assert names >= {f"a {text}.txt", "packed.gz, unpacked", "packed.zip, inside.txt", "base.db, dumped", "link"}
    assert search([tmp_path], [WORD]) == []


def acting(folder: Path, monkeypatch: pytest.MonkeyPatch, *, codes: dict[str, int]) -> tuple[int, dict[str, Any]]:
    """What `make leaks` ends with and writes, where the runs have left what lies in the folder."""
    scene = Scene(folder=folder / "work", inputs=given(folder), site_folder=folder / "work" / "server", codes=codes)
    main = LEAKS["main"]
    monkeypatch.setitem(main.__globals__, "ROOT", folder)
    monkeypatch.setitem(main.__globals__, "act", lambda where: (scene, (WORD, ABSENT)))
    return main(), json.loads((folder / "build" / "leaks" / "summary.json").read_text())


ABSENT = Planted(what="absent", text="Nobody-4499", where="header")


def given(folder: Path) -> Inputs:
    for name in ("work/runs/.home", "work/home", "data/user"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "data" / "job.json").write_text(WORD.text)
    return Inputs(root=folder / "data", job=folder / "data" / "job.json", user=folder / "data" / "user")


def test_the_summary_of_what_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(tmp_path)
    (tmp_path / "work/runs/.home/cohort-3f2a91c07be4").symlink_to(f"/data/{WORD.text}")
    (tmp_path / "work/home/way_back.json").write_text(WORD.text)
    code, summary = acting(tmp_path, monkeypatch, codes=EXPECTED | {"resumed": 0})
    assert summary.pop("seconds") >= 0
    assert summary == {"planted": 1, "found": 0, "exit_codes": EXPECTED | {"resumed": 0}, "leaks": []}
    assert code == 0


@pytest.mark.parametrize("where", ["runs/x/file", "runs/x/.home/link", "said/link"])
def test_what_is_found_is_told_and_fails_it(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "work" / where
    path.parent.mkdir(parents=True)
    if path.name == "link":
        path.symlink_to(f"/data/{WORD.text}")
    else:
        path.write_text(WORD.text)
    code, summary = acting(tmp_path, monkeypatch, codes=EXPECTED)
    assert (code, summary["found"], len(summary["leaks"])) == (1, 1, 1)
    assert f"LEAK {summary['leaks'][0]}" in capsys.readouterr().out
    assert where in summary["leaks"][0]


def test_a_run_that_ended_otherwise_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, summary = acting(tmp_path, monkeypatch, codes=EXPECTED | {"resumed": 1})
    assert (code, summary["found"]) == (1, 0)
    assert "not as they should have ended: {'resumed': 1}" in capsys.readouterr().out
