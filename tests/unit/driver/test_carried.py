"""Which class each input and output carries: by the edges of the workflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medweave.carried import AS_READ, Said, as_read, carried, held
from medweave.pipelines import Pipeline, Step, read_pipeline
from medweave_connectors.placement.data_rules import CLASSES

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
    assert pipeline.written_beside == {"check": {"found"}, "train": {"sum", "model"}}


@pytest.mark.parametrize(("cohort", "found"), [("identified", "identified"), ("de-identified", "de-identified")])
def test_classes_follow_the_edges(pipeline: Pipeline, cohort: str, found: str) -> None:
    said = Said(
        inputs={"cohort": cohort, "others": "model"},
        outputs={"check": AS_READ, "train": {"sum": AS_READ, "model": "model"}},
    )
    classes = carried(pipeline, said)
    assert classes == {
        "/": {"cohort": (cohort,), "others": ("model",), "found": (found,)},
        "/look": {"cohort": (cohort,), "found": (found,)},
        "/join": {"all": (found, "model"), "sum": (found,), "model": ("model",)},
    }
    assert held(classes["/join"]) == [found, "model"]


def test_an_input_and_an_output_of_one_name_carry_both(tmp_path: Path) -> None:
    step = Step(path="/x", role="r", gang=False, reads={"same": ("cohort",)}, writes=("same",))
    pipeline = Pipeline(path=tmp_path, steps=(step,), inputs=frozenset(["cohort"]), inputs_beside=frozenset())
    said = Said(inputs={"cohort": "identified"}, outputs={"r": "aggregate"})
    assert carried(pipeline, said)["/x"] == {"same": ("identified", "aggregate")}


@given(st.sets(st.sampled_from(CLASSES)), st.sets(st.sampled_from(CLASSES)))
def test_what_is_of_people_tells_no_less_than_anything_that_was_read(some: set[str], more: set[str]) -> None:
    def rank(found: str) -> int:
        return CLASSES.index(found)

    assert rank(as_read(some | more)) == min(rank(as_read(some)), rank(as_read(more)))
    assert all(rank(as_read(some)) <= rank(each) for each in some)
