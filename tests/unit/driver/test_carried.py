"""Which class each input and output carries: by the edges of the workflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medweave.placement.declared_classes import AS_READ, DeclaredClasses, as_read, classes_in, classes_of_ports
from medweave.project.workflows import Pipeline, read_pipeline
from medweave_connectors.policy.data_classes import DEFINITION
from medweave_connectors.policy.data_rules import CLASSES

WORKFLOW = """\
class: Workflow
inputs:
  - {id: cohort, type: Directory}
  - {id: others, type: ["null", {type: array, items: File}]}
  - {id: kind, type: {type: record, fields: {a: int}}}
  - {id: seed, type: int?}
outputs:
  found: {type: File, outputSource: ["#look/found"]}
  seeds: {type: int, outputSource: seed}
steps:
  - id: look
    run: tool.cwl
    in:
      - {id: cohort, source: cohort}
      - {id: seed, source: seed}
    out: [{id: found}]
  - {id: join, run: tool.cwl, in: {all: {source: [look/found, others]}, seed: {default: 1}}, out: [sum, model]}
"""

PURE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be busy


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "flow.cwl").write_text(WORKFLOW)
    (tmp_path / "tool.cwl").write_text("class: CommandLineTool\n")
    (tmp_path / "roles.yml").write_text("flow.cwl: {/look: check, /join: train}\n")
    return read_pipeline(tmp_path / "flow.cwl")


def test_a_pipeline_knows_its_edges_in_every_form_that_cwl_has(pipeline: Pipeline) -> None:
    assert pipeline.data_inputs == {"cohort", "others"}
    assert [dict(step.reads) for step in pipeline.steps] == [
        {"cohort": ("cohort",), "seed": ("seed",)},
        {"all": ("look/found", "others"), "seed": ()},
    ]
    assert pipeline.folder_outputs == {"check": {"found"}, "train": {"sum", "model"}}


def test_only_inputs_without_a_source_and_with_a_default_file_belong_to_the_definition(tmp_path: Path) -> None:
    default = "default: {class: File, location: program.py}"
    (tmp_path / "tool.cwl").write_text(
        f"class: CommandLineTool\ninputs:\n  program: {{type: File, {default}}}\n  other: {{type: File, {default}}}\n"
        f"  number: {{type: int, default: 3}}\n  model: File\n  folder: Directory\n  chosen: File\n"
        "  text: {type: File, default: {class: File, contents: hello}}\n"
        "  outside: {type: Directory, default: {class: Directory, location: /data/scans}}\n"
    )
    (tmp_path / "flow.cwl").write_text(
        f"class: Workflow\ninputs: {{scan: File}}\noutputs: {{}}\nsteps:\n"
        f"  one: {{run: tool.cwl, in: {{other: scan, model: {{{default}}}, folder: {{source: scan, {default}}}, "
        f"chosen: {{{default}, valueFrom: $(inputs.other)}}}}, out: []}}\n"
    )
    (tmp_path / "roles.yml").write_text("flow.cwl: {/one: check}\n")
    pipeline = read_pipeline(tmp_path / "flow.cwl")
    assert pipeline.steps[0].definition_files == {"program", "model", "text"}
    ports = classes_of_ports(pipeline, DeclaredClasses(inputs={"scan": "identified"}, outputs={}))["/one"]
    assert {name: classes for name, classes in ports.items() if classes == (DEFINITION,)}.keys() == {
        "program", "model", "text",
    }  # fmt: skip
    assert classes_in(ports) == ["identified"], "the definition restricts no place"


@pytest.mark.parametrize("inner", ["flow.cwl", "other.cwl"])
def test_a_workflow_that_runs_itself_is_read_once(tmp_path: Path, inner: str) -> None:
    for name, run in (("flow.cwl", inner), ("other.cwl", "flow.cwl")):
        step = f"{{run: {run}, in: {{}}, out: []}}"
        (tmp_path / name).write_text(f"class: Workflow\ninputs: {{}}\noutputs: {{}}\nsteps: {{again: {step}}}\n")
    (tmp_path / "roles.yml").write_text("flow.cwl: {/again: check}\n")
    assert [step.path for step in read_pipeline(tmp_path / "flow.cwl").steps] == ["/again"]


@pytest.mark.parametrize(("cohort", "found"), [("identified", "identified"), ("de-identified", "de-identified")])
def test_classes_follow_the_edges(pipeline: Pipeline, cohort: str, found: str) -> None:
    declared = DeclaredClasses(
        inputs={"cohort": cohort, "others": "model"},
        outputs={"check": AS_READ, "train": {"sum": AS_READ, "model": "model"}},
    )
    classes = classes_of_ports(pipeline, declared)
    assert classes == {
        "/": {"cohort": (cohort,), "others": ("model",), "found": (found,)},
        "/look": {"cohort": (cohort,), "found": (found,)},
        "/join": {"all": (found, "model"), "sum": (found,), "model": ("model",)},
    }
    assert classes_in(classes["/join"]) == [found, "model"]


def test_an_input_and_an_output_of_one_name_carry_both(tmp_path: Path) -> None:
    (tmp_path / "tool.cwl").write_text("class: CommandLineTool\n")
    (tmp_path / "roles.yml").write_text("flow.cwl: {/x: r}\n")
    step = "{run: tool.cwl, in: {same: cohort}, out: [same]}"
    (tmp_path / "flow.cwl").write_text(f"class: Workflow\ninputs: {{cohort: Directory}}\nsteps: {{x: {step}}}\n")
    pipeline = read_pipeline(tmp_path / "flow.cwl")
    declared = DeclaredClasses(inputs={"cohort": "identified"}, outputs={"r": "aggregate"})
    assert classes_of_ports(pipeline, declared)["/x"] == {"same": ("identified", "aggregate")}


CONDITIONAL = """\
class: Workflow
inputs: {cohort: Directory, identified: {type: boolean, default: true}, other: boolean}
outputs:
  one: {type: "Directory?", outputSource: hide/hidden}
  all: {type: "Directory[]", outputSource: [hide/hidden, cohort], pickValue: all_non_null}
steps:
  hide: {run: tool.cwl, when: $(inputs.identified), in: {identified: identified, cohort: cohort}, out: [hidden]}
  look:
    run: tool.cwl
    in: {cohort: {source: [hide/hidden, cohort], pickValue: first_non_null}}
    out: [found]
  maybe: {run: tool.cwl, when: "$(inputs.a && inputs.b)", in: {a: other, cohort: cohort}, out: [hidden]}
  last: {run: tool.cwl, in: {cohort: {source: [maybe/hidden, look/found], pickValue: first_non_null}}, out: []}
"""


@pytest.mark.parametrize(
    ("job", "looks_at"),
    [({}, "de-identified"), ({"identified": False}, "identified"), ({"identified": True}, "de-identified")],
)
def test_a_step_that_does_not_run_gives_nothing_and_one_that_does_is_the_first(
    tmp_path: Path, job: dict[str, bool], looks_at: str
) -> None:
    (tmp_path / "flow.cwl").write_text(CONDITIONAL)
    (tmp_path / "tool.cwl").write_text("class: CommandLineTool\n")
    (tmp_path / "roles.yml").write_text(
        "flow.cwl: {/hide: deidentify, /look: check, /maybe: deidentify, /last: check}\n"
    )
    declared = DeclaredClasses(
        inputs={"cohort": "identified"}, outputs={"deidentify": "de-identified", "check": AS_READ}
    )
    classes = classes_of_ports(read_pipeline(tmp_path / "flow.cwl"), declared, job)
    assert classes["/look"] == {"cohort": (looks_at,), "found": (looks_at,)}
    assert classes["/last"]["cohort"] == tuple(dict.fromkeys([looks_at, "de-identified"])), (
        "whether it runs is not known"
    )
    if job.get("identified", True):
        assert classes["/hide"] == {"cohort": ("identified",), "hidden": ("de-identified",)}
        assert (classes["/"]["one"], classes["/"]["all"]) == (("de-identified",), ("identified", "de-identified"))
    else:
        assert classes["/hide"] == {}
        assert "one" not in classes["/"]


@PURE
@given(st.sets(st.sampled_from(CLASSES)), st.sets(st.sampled_from(CLASSES)))
def test_what_is_of_people_tells_no_less_than_anything_that_was_read(some: set[str], more: set[str]) -> None:
    def rank(found: str) -> int:
        return CLASSES.index(found)

    assert rank(as_read(some | more)) == min(rank(as_read(some)), rank(as_read(more)))
    assert all(rank(as_read(some)) <= rank(data_class) for data_class in some)
