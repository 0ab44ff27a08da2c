"""Each CWL document alone, and compared with its verb."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import VERBS, load_verb
from medweave_steps.runtime.options import all_fields, all_hints
from support.cwl_files import DOCUMENTS, PIPELINES, TOOLS, load, name, references, step_paths, strings, validate

OWN_HINTS = "urn:medweave:cwl#"
COMMON_OPTIONS = {"--num-threads", "--run-report"}

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name)
each_tool = pytest.mark.parametrize("path", TOOLS, ids=name)
each_pipeline = pytest.mark.parametrize("path", PIPELINES, ids=name)


@each_document
def test_cwltool_warns_only_about_medweave_hints(path: Path) -> None:
    code, message = validate(path)
    assert code == 0, message
    assert [text for text in message if OWN_HINTS not in text] == []


@each_document
def test_reading_needs_no_network(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # StreamFlow's parser looks every http(s) address up that it takes for a link, 154 times for one hint of ours.
    import cwl_utils.parser
    import requests

    def refuse(_session: Any, method: str, url: str, **_keywords: Any) -> Any:
        calls.append(f"{method} {url}")
        raise requests.ConnectionError("no network in this test")

    calls: list[str] = []
    monkeypatch.setattr(requests.Session, "request", refuse)
    cwl_utils.parser.load_document_by_uri(str(path))
    assert calls == []


@each_document
def test_document_has_label_and_doc(path: Path) -> None:
    document = load(path)
    assert document["cwlVersion"] == "v1.2"
    assert document["label"]
    assert document["doc"]
    for kind in ("inputs", "outputs"):
        for parameter, described in document[kind].items():
            assert described.get("doc"), f"{parameter} has no doc"


@each_document
def test_files_have_a_format(path: Path) -> None:
    document = load(path)
    for kind in ("inputs", "outputs"):
        for parameter, described in document[kind].items():
            if "File" in str(described["type"]):
                assert described.get("format", "").startswith("edam:"), parameter


@each_document
def test_document_uses_plain_cwl(path: Path) -> None:
    document = load(path)
    required = {*document.get("requirements", {}), *document.get("hints", {})}
    assert not required & {
        "DockerRequirement",
        "InlineJavascriptRequirement",
        "cwltool:CUDARequirement",
        "MPIRequirement",
    }
    for text in strings(document):
        assert "${" not in text, "JavaScript"
        assert not re.match(r"/\w", text) or text.startswith("//"), f"an absolute path: {text}"


@each_tool
def test_a_tool_runs_one_verb_with_resources_and_a_time_limit(path: Path) -> None:
    document = load(path)
    assert document["baseCommand"] == ["medweave-step", path.stem]
    assert path.stem in VERBS
    resources = {
        key: document["inputs"][calls.removeprefix("$(inputs.").removesuffix(")")]["default"]
        if isinstance(calls, str)
        else calls
        for key, calls in document["requirements"]["ResourceRequirement"].items()
    }
    assert 1 <= resources["coresMin"] <= 2, "the demo's machine has 2 cores"
    assert 256 <= resources["ramMin"] <= 3584, "the demo's machine has 4 GB"
    assert document["requirements"]["ToolTimeLimit"]["timelimit"] > 0
    assert document["outputs"]["run_report"]["outputBinding"]["glob"] == "run_report.json"
    assert {"prefix": "--num-threads", "valueFrom": "$(runtime.cores)"} in document["arguments"]


@each_tool
def test_every_input_of_a_tool_is_used(path: Path) -> None:
    document = load(path)
    used = references(document)
    for parameter, described in document["inputs"].items():
        assert "inputBinding" in described or parameter in used, f"{parameter} reaches nothing"


@each_tool
def test_the_options_of_a_tool_are_those_of_its_verb(path: Path) -> None:
    document, config = load(path), load_verb(path.stem).config
    fields = {f"--{field.name.replace('_', '-')}": field for field in all_fields(config)}
    named = [words["prefix"] for words in document["arguments"] if "prefix" in words]
    bound = {
        p: described for p, described in document["inputs"].items() if "prefix" in described.get("inputBinding", {})
    }
    arguments = {*named, *(described["inputBinding"]["prefix"] for described in bound.values())}
    assert arguments <= set(fields) | COMMON_OPTIONS
    required = {option for option, field in fields.items() if field.default is dataclasses.MISSING}
    required -= {option for option in required if fields[option].metadata["positional"]}
    assert required <= arguments
    # An option whose first value is an input of its own: the others follow it without a prefix.
    following = {
        described["inputBinding"]["position"]: described["type"]
        for described in document["inputs"].values()
        if "prefix" not in described.get("inputBinding", {"prefix": ""})
        and described["inputBinding"].get("position", 0) > 0
    }
    for parameter, described in bound.items():
        field = fields[described["inputBinding"]["prefix"]]
        further = following.get(described["inputBinding"].get("position", 0) + 1, "")
        check_type(
            parameter,
            {**described, "type": f"{described['type']}{further}"} if further else described,
            all_hints(config)[field.name],
            field,
        )


def check_type(parameter: str, described: dict[str, Any], hint: Any, field: dataclasses.Field[Any]) -> None:
    """Assert that a verb's option and a tool's input agree: number of values, choices, default."""
    literals = [h for h in (hint, *typing.get_args(hint)) if typing.get_origin(h) is typing.Literal]
    choices = field.metadata["choices"]
    if choices:
        # The verb finds these names when it runs: a file in its package, or another package, is all that a new strategy or network
        # needs. Listed in an enum, each would be a change of the tool and of the workflows that have the input, and of their job
        # files' schemas.
        assert described["type"] in ("string", "string?"), f"{parameter}: the verb alone knows its choices"
    elif isinstance(described["type"], dict):
        assert set(described["type"]["symbols"]) == set(typing.get_args(literals[0])), parameter
    if "default" in described:
        assert described["default"] == field.default, f"{parameter}: the verb's default is {field.default}"
    several = any(typing.get_origin(h) is tuple for h in (hint, *typing.get_args(hint)))
    assert several == ("[]" in str(described["type"])), parameter


def listed(source: str | list[str]) -> list[str]:
    return [source] if isinstance(source, str) else source


@each_pipeline
def test_every_input_of_a_workflow_is_used_and_every_step_is_needed(path: Path) -> None:
    document = load(path)
    sources: list[str] = []
    for output in document["outputs"].values():
        sources += listed(output["outputSource"])
    for step in document["steps"].values():
        for bound in step["in"].values():
            sources += listed(bound if isinstance(bound, str) else bound.get("source", []))
    for parameter in document["inputs"]:
        assert parameter in sources, f"{parameter} reaches nothing"
    for step in document["steps"]:
        assert any(source.startswith(f"{step}/") for source in sources), f"nothing reads what {step} writes"


@each_pipeline
def test_no_workflow_lists_the_strategies(path: Path) -> None:
    document = load(path)
    for parameter, described in document["inputs"].items():
        if any(source == parameter for step in document["steps"].values() for source in [step["in"].get("strategy")]):
            assert described["type"] == "string", f"{parameter}: a new strategy would be a change of this workflow"


@each_pipeline
def test_steps_are_named_after_their_tool_and_have_a_role(path: Path) -> None:
    document = load(path)
    roles = load(path.parent / "roles.yml")[path.name]
    tools = {step: Path(described["run"]).stem for step, described in document["steps"].items()}
    for step, tool in tools.items():
        assert document["steps"][step]["run"] == f"../tools/{tool}.cwl"
        # A tool that is used more than once in a workflow gets the names of its parts from the steps.
        assert step.replace("_", "-") == tool or list(tools.values()).count(tool) > 1
        assert roles[f"/{step}"] == tool
    assert list(roles) == step_paths(path)
    assert set(roles.values()) <= set(VERBS)


@pytest.mark.parametrize("path", [path for path in PIPELINES if "segment" in load(path)["steps"]], ids=name)
def test_segment_is_scattered_over_batches(path: Path) -> None:
    steps = load(path)["steps"]
    assert steps["segment"]["scatter"] == "case_batch"
    assert steps["segment"]["in"]["case_batch"] == "preprocess/inference_batches"


@pytest.mark.parametrize(
    "path", [job for pipeline in PIPELINES for job in pipeline.parent.glob("jobs/*.yml")], ids=lambda path: path.stem
)
def test_jobs_name_inputs_of_their_workflow_and_no_absolute_path(path: Path) -> None:
    job = load(path)
    inputs = load(path.parents[1] / f"{path.stem.rpartition('-')[2]}.cwl")["inputs"]
    assert set(job) <= set(inputs)
    required = {n for n, d in inputs.items() if "default" not in d and not str(d["type"]).endswith("?")}
    assert required <= set(job)
    for value in job.values():
        if isinstance(value, dict):
            assert not Path(value["path"]).is_absolute()
