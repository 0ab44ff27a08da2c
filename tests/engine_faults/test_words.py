"""Faults C18 and C19 of the engine, of items and folders: they are shown on stock StreamFlow, and not there with medweave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.engine import FILE, run, write_workflow
from support.engine_faults import run_stock, shown, stock_file

HARM = ("the scan", "$(touch harm)", "quo'te", "100%41", "")
SHOW = """
import json, sys
json.dump(sys.argv[1:], open("words", "w"))
"""


def words(folder: Path, tool: dict[str, Any], *, ours: bool, job: dict[str, Any] | None = None) -> list[str]:
    """What a program is given, whose inputs are these. The engine's database stays, `stock.db` or in the run's scratch."""
    (folder / "show.py").write_text(SHOW)
    document = {
        "cwlVersion": "v1.2",
        "class": "CommandLineTool",
        "baseCommand": ["python3", str(folder / "show.py")],
        "requirements": {"InlineJavascriptRequirement": {}},
        "outputs": {"words": {"type": "File", "outputBinding": {"glob": "words"}}},
        **tool,
    }
    write_workflow(
        folder,
        {},
        job=job or {"names": list(HARM)},
        file=FILE if ours else stock_file(folder).replace(":memory:", "stock.db"),
    )
    (folder / "tiny.cwl").write_text(json.dumps(document))
    ended = (run if ours else run_stock)(folder, environment={"MEDWEAVE_KEEP_WORK": "1"})
    assert ended.exit_code == 0, ended.stderr
    found = json.loads((folder / "results" / "words").read_text())
    return [str(each) for each in found]


@pytest.mark.parametrize("shell", [False, True], ids=["program", "shell command"])
def test_c18_no_item_of_a_list_is_run(stock: Path, ours: Path, shell: bool, stock_only: bool) -> None:
    tool: dict[str, Any] = {
        "requirements": {"InlineJavascriptRequirement": {}} | ({"ShellCommandRequirement": {}} if shell else {}),
        "inputs": {"names": {"type": "string[]", "inputBinding": {"prefix": "--names"}}},
    }
    if not shell:  # the stock engine runs no shell command that is not one word
        told = words(stock, tool, ours=False, job={"names": ["the scan", "$(touch harm)"]})
        shown(told == ["--names", "the", "scan"] and any(stock.rglob("harm")), told)
    if stock_only:
        return
    assert words(ours, tool, ours=True) == ["--names", *HARM]
    assert not list(ours.rglob("harm"))


@pytest.mark.parametrize(
    ("kind", "binding", "expected"),
    [
        ("string[]?", {}, HARM),
        ("string[]", {"itemSeparator": ", "}, (", ".join(HARM),)),
        ("string[]", {"valueFrom": "$(self.concat('a b'))"}, (*HARM, "a b")),
        ({"type": "array", "items": {"type": "array", "items": "string"}}, {}, ("a b", "c", "d e")),
        ({"type": "array", "items": "string", "inputBinding": {"prefix": "-n"}}, {}, [w for h in HARM for w in ("-n", h)]),
        (["string", {"type": "array", "items": "string"}], {}, HARM),
        (["string", {"type": "array", "items": "string"}], {"prefix": "-n"}, ("-n", "one $HOME")),
    ],
)  # fmt: skip
def test_items_are_words_however_a_list_is_bound(ours: Path, kind: Any, binding: Any, expected: Any) -> None:
    names: Any = list(HARM)
    if "c" in expected:
        names = [["a b", "c"], ["d e"]]
    elif "one $HOME" in expected:
        names = "one $HOME"
    tool = {"inputs": {"names": {"type": kind, "inputBinding": binding}}}
    assert words(ours, tool, ours=True, job={"names": names}) == list(expected)


def test_c19_a_folder_is_listed_for_nobody_who_did_not_ask(stock: Path, ours: Path, stock_only: bool) -> None:
    for folder in (stock, ours):
        (folder / "scans").mkdir()
        (folder / "scans" / "patient-4711.dcm").write_text("x")
    tool = {"inputs": {"scans": {"type": "Directory"}}}
    job = {"scans": {"class": "Directory", "path": "scans"}}
    words(stock, tool, ours=False, job=job)
    shown(b"patient-4711" in (stock / "stock.db").read_bytes(), "the stock database holds no name inside a folder")
    if stock_only:
        return
    words(ours, tool, ours=True, job=job)
    (database,) = ours.glob("runs/*/work/engine.db")
    assert b"patient-4711" not in database.read_bytes()
