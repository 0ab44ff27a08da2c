"""Comparison of a demo's digests with the recorded ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.scripts import module_of

PROGRAM = module_of(Path(__file__).with_name("demo_digests.py"))


def demo(folder: Path, **report: Any) -> Path:
    """Write a demo's folder with a model, a mask and a report."""
    card = {"precision": "float32", "training": {"steps": 7}, "seconds": 1.0}
    phantom = {"config": {"cases": 3, "held_out_cases": 2}, "num_threads": 2, "started_at": "now"}
    files = {
        "output/accepted_model/model_card.json": card | report,
        "output/accepted_model/models/model.safetensors": "weights",
        "output/segmentations/case-1/lesion_mask.nii.gz": "mask",
        "phantom_report.json": phantom,
        "report.html": "no run",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.fixture
def known(tmp_path: Path) -> Any:
    return PROGRAM.digests_of(demo(tmp_path / "known"))


def test_fields_that_change_at_each_run_do_not_count(tmp_path: Path, known: Any) -> None:
    assert PROGRAM.compare([known], PROGRAM.digests_of(demo(tmp_path / "new", seconds=2.0))) == 0


@pytest.mark.parametrize("name", ["models/model.safetensors", "model_card.json"])
def test_changed_content_is_reported_by_name(
    tmp_path: Path, known: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = demo(tmp_path / "new")
    path = folder / "output" / "accepted_model" / name
    path.write_text(path.read_text().replace("weights", "others").replace("}", ', "name": 1}', 1))
    assert PROGRAM.compare([known], PROGRAM.digests_of(folder)) == 1
    assert f"differs: output/accepted_model/{name}" in capsys.readouterr().out


def test_missing_mask_is_reported(tmp_path: Path, known: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = demo(tmp_path / "new")
    (folder / "output/segmentations/case-1/lesion_mask.nii.gz").unlink()
    assert PROGRAM.compare([known], PROGRAM.digests_of(folder)) == 1
    assert "missing: output/segmentations/case-1/lesion_mask.nii.gz" in capsys.readouterr().out


def test_only_names_are_compared_for_an_unknown_processor(
    tmp_path: Path, known: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = demo(tmp_path / "new")
    (folder / "output/accepted_model/models/model.safetensors").write_text("others")
    other = PROGRAM.digests_of(folder)._replace(processor="another")
    assert PROGRAM.compare([known], other) == 0
    output = capsys.readouterr().out
    assert "No digests are recorded for this processor" in output
    assert output.endswith("equal\n")


def test_weights_are_compared_where_the_gate_accepted_another_precision(
    tmp_path: Path, known: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    other = PROGRAM.digests_of(demo(tmp_path / "new", precision="int8"))
    assert PROGRAM.compare([known], other) == 0
    folder = demo(tmp_path / "other", precision="int8")
    (folder / "output/accepted_model/models/model.safetensors").write_text("others")
    assert PROGRAM.compare([known], PROGRAM.digests_of(folder)) == 1
    assert "differs: output/accepted_model/models/model.safetensors" in capsys.readouterr().out
