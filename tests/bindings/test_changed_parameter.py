"""The lung inference again: unchanged, no job is run; with another parameter of `segment` that step is, and nothing before it."""

from __future__ import annotations

import json
from pathlib import Path

from medweave.placement.bind import bind, fit
from medweave.plan.past_runs import read_past
from medweave.plan.planner import make_plan
from medweave_core.runlog.history import Run, read_runs
from support.chest_cohort import write_dicom
from support.cwl_files import WORKFLOWS
from support.engine import run
from support.openvino_models import InputContract, write_tiny_model
from support.reuse_runs import ON

INFER = WORKFLOWS / "lung-nodule-segmentation" / "infer.cwl"


def give(folder: Path, **values: object) -> None:
    data = {
        name: {"class": "Directory", "path": path}
        for name, path in (("cohort", "cohort"), ("segmentation_model", "exported"))
    }
    fixed = {"identified": False, "cases_per_batch": 1}
    (folder / "job.yml").write_text(json.dumps(data | fixed | values))


def ran(folder: Path) -> Run:
    bound = folder / "streamflow.yml"
    bound.write_text(bind(INFER, "laptop", bound, folder / "job.yml"))
    ended = run(folder, environment=ON)
    assert ended.exit_code == 0, ended.stderr
    return max(read_runs(folder / "runs"), key=lambda each: each.started)


def planned(folder: Path) -> dict[str, str]:
    steps = make_plan(fit(INFER, "laptop", folder / "job.yml"), read_past([folder / "runs"], INFER)).steps
    return {step.step: step.reuse.state for step in steps if step.reuse is not None}


def test_changed_parameter_of_segment_reruns_only_dependent_steps(tmp_path: Path) -> None:
    write_dicom(tmp_path / "cohort", 2, coarse=True)
    contract = InputContract(
        spacing_mm=(10.0, 10.0, 10.0), window_hu=(-1000.0, 400.0), patch_shape=(16, 16, 16), patch_multiple=4
    )
    write_tiny_model(tmp_path / "exported", input=contract)
    give(tmp_path)
    assert set(planned(tmp_path).values()) == {"runs"}
    first = ran(tmp_path)
    assert not any(job.reused_from for job in first.jobs)
    assert set(planned(tmp_path).values()) == {"reused"}
    again = ran(tmp_path)
    assert {job.name: job.reused_from for job in again.jobs} == {job.name: first.run_id for job in first.jobs}

    give(tmp_path, threshold=0.4)
    states = planned(tmp_path)
    assert states == {"/check": "reused", "/preprocess": "reused", "/segment": "runs"}
    second = ran(tmp_path)
    assert {job.name: job.reused_from for job in second.jobs} == {
        "/check/0": first.run_id, "/preprocess/0": first.run_id, "/segment/0.0": "", "/segment/0.1": "",
    }  # fmt: skip
    assert [job.parts["input case_batch"] for job in second.jobs[-2:]] == [
        job.parts["input case_batch"] for job in first.jobs[-2:]
    ], "it had the same inputs as before"
