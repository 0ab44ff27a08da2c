"""Values and names of files reach a step's command as they are written, in a project whose own path has such a name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from medweave.cli import main_command
from medweave_core.errors import UserInputError
from support.engine import run, write_workflow

PROJECT = "hash#1 per%41cent +x?"
RATES = "[1.0e-3, 1.0e-6, 1.0e-7, 3.0e-8, 0.00000001, 1.0e+22, 0.1, 1.0]"
JOB = f"""
lr: 1.0e-7
lrs: {RATES}
point: {{x: 2.5e-9, ys: [1.0e-7, 4.0e-30]}}
i: 2147483647
l: 9007199254740993
s: "tab\\there 'q' \\"d\\" $HOME `x` \\\\ \\n line2"
deep: [[1, 2], [], [3]]
any: {{k: [1, null]}}
by_path: {{class: File, path: "data/50%41.txt"}}
by_location: {{class: File, location: "data/a%20b%2523.txt"}}
folder: {{class: Directory, path: "data"}}
"""
FILES = {"50%41.txt": "right\n", "50A.txt": "wrong\n", "a b%23.txt": "right\n", "a b#.txt": "wrong\n"}


def tool(inputs: Mapping[str, Any], command: list[Any], **keys: Any) -> dict[str, Any]:
    """Return a tool that prints its result."""
    return {
        "class": "CommandLineTool",
        "baseCommand": command,
        "inputs": dict(inputs),
        "outputs": {"o": "stdout"},
        **keys,
    }


SHOW = ["python3", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
RATE = {"type": "double", "inputBinding": {"prefix": "--lr"}}
POINT = {
    "type": "record",
    "fields": {
        "x": {"type": "double", "inputBinding": {"prefix": "--x"}},
        "ys": {"type": "double[]", "inputBinding": {"prefix": "--ys", "itemSeparator": ","}},
    },
}
NUMBERS = tool(
    {"lr": RATE, "point": {"type": POINT, "inputBinding": {"position": 1}}}
    | {name: {"type": "double?", "inputBinding": {"prefix": f"--{name}"}} for name in ("eps", "js", "small")},
    SHOW, arguments=["--arg", "$(inputs.lr)"], stdout="numbers.txt",
)  # fmt: skip
ANY = tool(
    {
        "i": {"type": "int", "inputBinding": {"position": 1, "prefix": "-i"}},
        "l": {"type": "long", "inputBinding": {"position": 2, "prefix": "-l"}},
        "s": {"type": "string", "inputBinding": {"position": 3, "prefix": "-s"}},
        "deep": {
            "type": {"type": "array", "items": {"type": "array", "items": "int", "inputBinding": {"itemSeparator": ","}}},
            "inputBinding": {"position": 4, "prefix": "--deep"},
        },
        "any": {"type": "Any", "inputBinding": {"position": 5, "prefix": "--any"}},
    },
    SHOW, stdout="values.txt",
)  # fmt: skip
WORK_DIR = tool(
    {"f": "File", "folder": "Directory"},
    ["sh", "-c", "cat 'con fig/set%41tings #1.json' sub/w%41.txt \"$0\" d/50%41.txt"],
    arguments=["$(inputs.f)"], stdout="a folder/work_dir.txt",
    requirements={
        "InitialWorkDirRequirement": {
            "listing": [
                {"entryname": "con fig/set%41tings #1.json", "entry": '$({"a": inputs.f.size, "rate": 1e-7})'},
                {"entryname": "sub/w%41.txt", "entry": "written\n"},
                {"entryname": "d", "entry": "$(inputs.folder)"},
                "$(inputs.f)",
            ]
        }
    },
)  # fmt: skip
READ = tool({"f": {"type": "File", "inputBinding": {}}}, ["cat"])
STEPS: dict[str, dict[str, Any]] = {
    "numbers": {
        "run": NUMBERS,
        "in": {
            "lr": "lr", "eps": "eps", "point": "point", "small": {"default": 2.5e-7},
            "js": {"default": 0, "valueFrom": "$(1e-9)"},
        },
    },
    "rates": {"run": tool({"lr": RATE}, SHOW, stdout="rates.txt"), "in": {"lr": "lrs"}, "scatter": "lr"},
    "values": {"run": ANY, "in": {name: name for name in ANY["inputs"]}},
    "read_path": {"run": READ | {"stdout": "read_path.txt"}, "in": {"f": "by_path"}},
    "read_location": {"run": READ | {"stdout": "read_location.txt"}, "in": {"f": "by_location"}},
    "work_dir": {"run": WORK_DIR, "in": {"f": "by_path", "folder": "folder"}},
}  # fmt: skip
FEATURES = ("ScatterFeatureRequirement", "StepInputExpressionRequirement", "InlineJavascriptRequirement")
WORKFLOW = {
    "cwlVersion": "v1.2",
    "class": "Workflow",
    "requirements": {name: {} for name in FEATURES},
    "inputs": {
        "lrs": "double[]", "lr": "double", "eps": {"type": "double", "default": 1.0e-8},
        "point": {"type": {"type": "record", "fields": {"x": "double", "ys": "double[]"}}},
        "i": "int", "l": "long", "s": "string", "any": "Any",
        "deep": {"type": {"type": "array", "items": {"type": "array", "items": "int"}}},
        "by_path": "File", "by_location": "File", "folder": "Directory",
    },
    "steps": {name: step | {"out": ["o"]} for name, step in STEPS.items()},
    "outputs": {
        f"{name}_output": {"type": "File[]" if name == "rates" else "File", "outputSource": f"{name}/o"} for name in STEPS
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project in which one `streamflow run` has run all steps; each printed into `results/STEP.txt`."""
    folder = tmp_path_factory.mktemp("values") / PROJECT
    (folder / "data").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / "data" / name).write_text(text, encoding="utf-8")
    write_workflow(folder, {})
    (folder / "tiny.cwl").write_text(json.dumps(WORKFLOW), encoding="utf-8")
    (folder / "job.yml").write_text(JOB, encoding="utf-8")
    ended = run(folder)
    assert ended.exit_code == 0, ended.stderr
    return folder


def printed(project: Path, step: str) -> str:
    return (project / "results" / f"{step}.txt").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.case("small-floats", expected="--lr 0.00000010: the decimal value of every number")
def test_small_numbers_reach_the_command(project: Path, seen: Callable[[object], None]) -> None:
    words = json.loads(printed(project, "numbers"))
    seen(words)
    values = dict(zip(words[::2], words[1::2], strict=True))
    expected = {"--arg": 1e-7, "--lr": 1e-7, "--eps": 1e-8, "--js": 1e-9, "--small": 2.5e-7, "--x": 2.5e-9}
    assert {name: float(word) for name, word in values.items() if name != "--ys"} == expected
    assert [float(word) for word in values["--ys"].split(",")] == [1e-7, 4e-30]
    assert "e" not in "".join(values.values())
    scattered = {json.loads(path.read_text(encoding="utf-8"))[1] for path in (project / "results").glob("rates*.txt")}
    assert {float(word) for word in scattered} == set(json.loads(RATES))


@pytest.mark.slow
@pytest.mark.case("any-object", expected="a mapping of type Any adds its prefix only; integers keep all digits")
def test_values_of_any_type_reach_the_command(project: Path, seen: Callable[[object], None]) -> None:
    words = json.loads(printed(project, "values"))
    seen(words)
    text = "tab\there 'q' \"d\" $HOME `x` \\ \n line2"
    assert words == ["-i", "2147483647", "-l", "9007199254740993", "-s", text, "--deep", "1", "2", "3", "--any"]


@pytest.mark.slow
@pytest.mark.case("path-percent", expected="path: 50%41.txt reads the file of that name")
def test_a_path_is_literal(project: Path, seen: Callable[[object], None]) -> None:
    seen(printed(project, "read_path"))
    assert printed(project, "read_path") == "right\n"


@pytest.mark.slow
@pytest.mark.case("location-percent", expected="location: a%20b.txt reads 'a b.txt', in the run and in validate")
def test_a_location_is_a_uri(
    project: Path, seen: Callable[[object], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    code = main_command.main(["validate", "."])
    seen((printed(project, "read_location"), code))
    assert (printed(project, "read_location"), code) == ("right\n", 0), capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.case("iwd-subfolder", expected="an entryname with a folder is written into that folder")
def test_directory_entry_may_be_in_a_subfolder(project: Path, seen: Callable[[object], None]) -> None:
    seen(printed(project, "work_dir"))
    assert printed(project, "work_dir") == '{"a": 6, "rate": 1e-07}written\nright\nright\n'


@pytest.mark.slow
@pytest.mark.case("project-path-hash", expected="exit code 0 in a project below '#', '%41', '+' and '?'")
def test_a_project_may_have_any_path(
    tmp_path: Path, seen: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / PROJECT
    project.mkdir()
    monkeypatch.chdir(project)
    workflow = "workflows/x/x.cwl"
    commands = (
        ["new", "workflow", "x"],
        ["validate"],
        ["plan", workflow, "--site", "laptop"],
        ["bind", workflow, "--site", "laptop", "-o", "streamflow.yml"],
        ["run", workflow, "--site", "laptop", "--outdir", "results"],
    )
    codes = {words[0]: main_command.main(words) for words in commands}
    seen(codes)
    assert codes == dict.fromkeys(codes, 0)
    assert len(list((project / "results").glob("*.json"))) == 2


@pytest.mark.case("secondary-missing", expected="validate and run refuse it before the run, with the file's name")
def test_a_missing_secondary_file_is_refused(
    tmp_path: Path, seen: Callable[[object], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_workflow(tmp_path, {})
    secondary = [{"pattern": ".idx"}, {"pattern": "^.hdr", "required": False}]
    document = tool({"f": {"type": "File", "secondaryFiles": secondary}}, ["cat"]) | {"cwlVersion": "v1.2"}
    (tmp_path / "tiny.cwl").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "job.yml").write_text("f: {class: File, path: x.dat}\n", encoding="utf-8")
    (tmp_path / "x.dat").write_text("d", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main_command.main(["validate", "."]) != 0
    output = capsys.readouterr().out
    code = main_command.main(["run", "--file", "streamflow.yml"])
    error = capsys.readouterr().err
    seen((code, error.splitlines()[0]))
    assert code == UserInputError.exit_code
    assert "x.dat.idx" in output
    assert "x.dat.idx" in error
    assert "hdr" not in output + error
