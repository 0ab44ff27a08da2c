"""The demo's own parts; the whole of it is run by CI."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = module_of(ROOT / "deployments" / "demo" / "demo.py")
    monkeypatch.setattr(module, "DEMO", tmp_path)
    return module


def test_fewer_steps_change_nothing_else(demo: ModuleType) -> None:
    document = YAML(typ="safe").load(demo.with_options(steps=7, gate_candidates="float32:openvino"))
    usual = YAML(typ="safe").load(ROOT / "streamflow.yml")
    config, usual_config = (document["workflows"]["lung"].pop("config") for document in (document, usual))
    assert document == usual
    assert Path(config["file"]) == ROOT / usual_config["file"]
    job = YAML(typ="safe").load(Path(config["settings"]))
    usual_job = YAML(typ="safe").load(ROOT / usual_config["settings"])
    assert job.pop("training_steps") == 7
    assert job.pop("gate_candidates") == "float32:openvino"
    cohort = (ROOT / usual_config["settings"]).parent / usual_job.pop("cohort")["path"]
    assert Path(job.pop("cohort")["path"]) == cohort.resolve()
    assert job == usual_job


@pytest.mark.parametrize("text", ["0", "-3", "1e3", "many", ""])
def test_other_text_than_a_number_is_an_error(demo: ModuleType, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="a whole number from 1"):
        demo.number(text, least=1, example=500)


def test_too_few_cases_to_split_are_an_error(demo: ModuleType) -> None:
    assert demo.number("12", least=demo.FEWEST_CASES, example=30) == 12
    with pytest.raises(ArgumentTypeError, match="a whole number from 12"):
        demo.number("11", least=demo.FEWEST_CASES, example=30)


def test_the_smallest_cohort_gives_the_hybrid_run_two_jobs_to_segment(demo: ModuleType) -> None:
    job = YAML(typ="safe").load(ROOT / "workflows" / "lung-nodule-segmentation" / "jobs" / "hybrid-train.yml")
    assert demo.held_out_of(demo.FEWEST_CASES) > job["cases_per_batch"]


def test_no_moments_speed_chooses_the_model_that_two_places_are_compared_by() -> None:
    job = YAML(typ="safe").load(ROOT / "workflows" / "lung-nodule-segmentation" / "jobs" / "hybrid-train.yml")
    assert job["gate_candidates"] == "int8:openvino", (
        "int8 is about as fast as float32 on some processors, and time chose float32 at one place"
    )
