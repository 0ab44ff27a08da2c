"""Faults C18 to C23 of the engine, of words, values and names: stock StreamFlow shows them, and medweave does not have them."""

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
    """Return the arguments that a program with these inputs gets. The engine's database stays (`stock.db`, or in the scratch)."""
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
    arguments = json.loads((folder / "results" / "words").read_text())
    return [str(argument) for argument in arguments]


@pytest.mark.parametrize("shell", [False, True], ids=["program", "shell command"])
def test_c18_no_item_of_a_list_is_run(stock: Path, ours: Path, shell: bool, stock_only: bool) -> None:
    tool: dict[str, Any] = {
        "requirements": {"InlineJavascriptRequirement": {}} | ({"ShellCommandRequirement": {}} if shell else {}),
        "inputs": {"names": {"type": "string[]", "inputBinding": {"prefix": "--names"}}},
    }
    if not shell:  # the stock engine runs no shell command that is not one word
        arguments = words(stock, tool, ours=False, job={"names": ["the scan", "$(touch harm)"]})
        shown(arguments == ["--names", "the", "scan"] and any(stock.rglob("harm")), arguments)
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


def test_c20_a_small_number_is_not_rounded_to_zero(stock: Path, ours: Path, stock_only: bool) -> None:
    tool: dict[str, Any] = {"inputs": {"rate": {"type": "double", "inputBinding": {"prefix": "--rate"}}}}
    job = {"rate": 1.0e-7}
    stock_words = words(stock, tool, ours=False, job=job)
    shown(stock_words == ["--rate", "0"], stock_words)
    if stock_only:
        return
    assert words(ours, tool, ours=True, job=job) == ["--rate", "0.0000001"]


def test_c21_no_word_of_a_record_is_dropped(stock: Path, ours: Path, stock_only: bool) -> None:
    inner = {"type": "record", "fields": {"name": {"type": "string", "inputBinding": {"valueFrom": "is $(self)"}}}}
    outer = {"type": "record", "fields": {"labels": "string[]", "patient": {"type": inner}}}
    tool = {"inputs": {"study": {"type": outer, "inputBinding": {}}}}
    job = {"study": {"labels": ["a"], "patient": {"name": "b"}}}
    stock_words = words(stock, tool, ours=False, job=job)
    shown(stock_words == [], stock_words)
    if stock_only:
        return
    assert words(ours, tool, ours=True, job=job) == ["is b"]


def test_c22_a_path_leads_to_the_file_of_its_name(stock: Path, ours: Path, stock_only: bool) -> None:
    for folder in (stock, ours):
        (folder / "50%41.txt").write_text("right")
        (folder / "50A.txt").write_text("wrong")
    tool = {"inputs": {"dose": {"type": "File", "loadContents": True}}, "arguments": ["$(inputs.dose.contents)"]}
    job = {"dose": {"class": "File", "path": "50%41.txt"}}
    stock_words = words(stock, tool, ours=False, job=job)
    shown(stock_words == ["wrong"], stock_words)
    if stock_only:
        return
    assert words(ours, tool, ours=True, job=job) == ["right"]


def test_c23_a_file_may_be_written_into_a_folder(stock: Path, ours: Path, stock_only: bool) -> None:
    listing = [{"entryname": "settings/rate.txt", "entry": "0.1"}]
    keys = {"requirements": {"InitialWorkDirRequirement": {"listing": listing}}, "stdout": "logs/log.txt"}
    tools = {"first": ("cp settings/rate.txt result.txt", keys)}
    write_workflow(stock, tools, file=stock_file(stock))
    ended = run_stock(stock)
    shown(ended.exit_code != 0 and "No such file" in ended.stderr, ended.stderr)
    if stock_only:
        return
    write_workflow(ours, tools)
    assert run(ours).exit_code == 0
    assert (ours / "results" / "result.txt").read_text() == "0.1"


def test_c19_a_folder_is_listed_only_on_request(stock: Path, ours: Path, stock_only: bool) -> None:
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
