"""The own-data commands of the workflows' READMEs, run as they are on the page, process the user's cohort."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from medweave_steps.cli import main
from support.both_engines import BIN_DIR
from support.brain_cohort import PREPARED_SHAPE, SPACING_MM, write_brains
from support.chest_cohort import write_dicom
from support.cwl_files import ROOT, WORKFLOWS
from support.head_cohort import write_heads
from support.image_files import skin_cohort
from support.searches import TINY as TINY_TRIAL
from support.searches import table_in

LAPTOP = Path("deployments/sites/laptop.yml")
TINY_CHESTS = """
spacing_mm: [8, 8, 10]
training_batch_size: 2
training_patch_shape: [8, 8, 8]
training_channels: [4, 4, 8, 8, 8]
training_threads: 1
"""
TINY_BRAINS = f"""
spacing_mm: [{SPACING_MM}, {SPACING_MM}, {SPACING_MM}]
volume_shape: {list(PREPARED_SHAPE)}
training_threads: 1
"""

TINY_IMAGES = """
training_width: 0.25
training_batch_size: 4
training_threads: 1
gate_candidates: float32:openvino
"""
TINY_HEADS = """
training_width: 0.125
training_batch_size: 4
training_threads: 1
"""


CHANNELS = 'channels: {class: File, path: channels.json, format: "http://edamontology.org/format_3464"}'
"""Of a job file, for a cohort of DICOM series; as in the README."""


def commands(workflow: str) -> str:
    """Return the bash blocks of a README as one script, in the order of the page."""
    page = (WORKFLOWS / workflow / "README.md").read_text()
    blocks = re.findall(r"^( *)```bash\n(.*?)^\1```", page, flags=re.DOTALL | re.MULTILINE)
    return "".join(textwrap.dedent(block) for _, block in blocks)


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Return a text of the repository with other values."""
    for old, new in changes.items():
        assert old in text, f"the repository's text does not have {old!r}"
        text = text.replace(old, new)
    return text


def run(folder: Path, workflow: str, changes: Mapping[str, str], *, planned: bool = False) -> None:
    """Run the commands of a README in `folder`, with a copy of what the repository has for it.

    Args:
        changes: text of the README -> text that replaces it: the user's paths, and sizes for a training of a second.
        planned: `medweave plan` replaces `medweave run`.
    """
    script = changed(commands(workflow), changes)
    if planned:
        script, number = re.subn(r"medweave run (.*) --outdir \S+", r"medweave plan \1", script)
        assert number
        assert "medweave run" not in script
    shutil.copytree(WORKFLOWS, folder / "workflows")
    (folder / LAPTOP).parent.mkdir(parents=True)
    shutil.copy(ROOT / LAPTOP, folder / LAPTOP)
    ended = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": f"{BIN_DIR}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def patients(home: Path) -> set[str]:
    """Return whom a re-identification map names."""
    return {patient["patient_id"] for patient in read(home / "way_back.json")["patients"]}


@pytest.mark.pipeline
def test_lung_commands_process_the_cohort_of_the_job_file(tmp_path: Path) -> None:
    write_dicom(tmp_path / "own scans", 5, coarse=True)
    write_dicom(tmp_path / "new-scans", 2, coarse=True)
    shutil.rmtree(tmp_path / "new-scans" / "ground-truth")
    own = {f"p{number}" for number in range(5)}
    changes = {
        "/data/chest-ct": str(tmp_path / "own scans"),
        "/data/new-chest-ct": str(tmp_path / "new-scans"),
        "training_steps: 4000\n": f"training_steps: 2\n{TINY_CHESTS}",
    }
    run(tmp_path, "lung-nodule-segmentation", changes)

    assert patients(tmp_path / "results" / "home") == own
    for name in ("nodules", "nodules-streamflow"):
        assert patients(tmp_path / name / "home") == {"p0", "p1"}
    card = read(tmp_path / "results" / "accepted_model" / "model_card.json")
    assert (card["synthetic_data"], card["training"]["steps_done"]) == (False, 2)
    trained = [read(path) for path in (tmp_path / "runs").glob("*/reports/train/run_report.json")]
    assert trained
    assert not [text for report in trained for text in report["notices"] if "defaults" in text], (
        "the job sets the recipe"
    )
    delivered = {path.name for path in (tmp_path / "nodules").glob("segmentations-batch-*/case-*/*")}
    assert delivered == {"lesion_mask.nii.gz", "lesion_mask.dcm", "lesions.csv", "lesions_sr.dcm"}


@pytest.mark.pipeline
def test_brain_commands_process_the_cohort_of_the_job_file(tmp_path: Path) -> None:
    write_brains(tmp_path / "own-brains", 5, seed=4)
    write_brains(tmp_path / "new-brains", 1, seed=5)
    changes = {
        "/data/Task01_BrainTumour": str(tmp_path / "own-brains"),
        "/data/new-brains": str(tmp_path / "new-brains"),
        "epochs: 250\n": f"epochs: 1\n{TINY_BRAINS}",
        "training_ranks: 4 ": "training_ranks: 1 ",
    }
    run(tmp_path, "brain-tumour-segmentation", changes)
    names = {path.name.removesuffix(".nii.gz") for path in (tmp_path / "own-brains" / "imagesTr").iterdir()}
    segmented = {path.name for path in (tmp_path / "results").glob("segmentations-batch-*/*") if path.is_dir()}
    assert segmented
    assert segmented <= names
    assert len(list((tmp_path / "tumors").glob("segmentations-batch-*/*/lesion_mask.nii.gz"))) == 1


@pytest.mark.pipeline
def test_image_commands_process_the_cohort_of_the_job_file(tmp_path: Path) -> None:
    skin_cohort(tmp_path / "own-images", "AB" * 10)
    skin_cohort(tmp_path / "new-images", "AB")
    (tmp_path / "new-images" / "targets.csv").unlink()
    changes = {
        "/data/skin-lesions": str(tmp_path / "own-images"),
        "/data/new-images": str(tmp_path / "new-images"),
        "image_size: [224, 224]": "image_size: [32, 32]",
        "training_steps: 4000\n": f"training_steps: 2\n{TINY_IMAGES}",
        "--cases 300 --held-out-cases 100 ": "--cases 24 --held-out-cases 4 ",
        # A radiograph's run is that of tests/cwl/test_image_classification.py: here, its command and its job file are checked.
        "medweave run workflows/image-classification/train.cwl --site laptop --outdir xray-results":
            "medweave plan workflows/image-classification/train.cwl --site laptop",
    }  # fmt: skip
    run(tmp_path, "image-classification", changes)
    card = read(tmp_path / "results" / "accepted_model" / "model_card.json")
    assert [one["name"] for one in card["classes"]] == ["A", "B"]
    assert read(tmp_path / "results" / "evaluation" / "metrics.json")["cases"] > 0
    assert (tmp_path / "results" / "home" / "way_back.json").is_file()
    (table,) = (tmp_path / "classes").glob("classifications-batch-*/classifications.csv")
    assert len(table.read_text().splitlines()) == 1 + 2
    assert len(list((tmp_path / "explanations").glob("*/explanation_map.png"))) == 2


@pytest.mark.pipeline
def test_alzheimer_commands_process_the_cohort_of_the_job_file(tmp_path: Path) -> None:
    write_heads(tmp_path / "own-heads", 10, mmse=True)
    (tmp_path / "channels.json").write_text('[{"name": "T1w"}]')
    new = ["--subjects", "2", "--grid", "demo", "--format", "dicom", "--output", str(tmp_path / "new-heads")]
    assert main(["phantom", "t1", *new, "--run-report", str(tmp_path / "phantom.json")]) == 0
    (tmp_path / "new-heads" / "participants.tsv").unlink()
    changes = {
        "/data/memory-clinic": str(tmp_path / "own-heads"),
        "/data/new-heads": str(tmp_path / "new-heads"),
        "groups: [AD, NC]\n": f"groups: [AD, NC]\n{TINY_HEADS}training_steps: 2\nspacing_mm: [6, 6, 6]\nshape: [32, 32, 32]\n",
        "--subjects 200 ": "--subjects 30 ",
        "classification_model:": f"{CHANNELS}\nclassification_model:",
        # Its run differs from the first only in the groups: here, the command and its job file are checked.
        "medweave run workflows/alzheimer-classification/train.cwl --site laptop --outdir mci-results":
            "medweave plan workflows/alzheimer-classification/train.cwl --site laptop",
    }  # fmt: skip
    run(tmp_path, "alzheimer-classification", changes)
    renamed = {path.partition("/")[0] for path in read(tmp_path / "results" / "home" / "way_back.json")["files"]}
    assert renamed == {path.name for path in (tmp_path / "own-heads").glob("sub-*")}
    metrics = read(tmp_path / "results" / "evaluation" / "metrics.json")
    assert {one["covariate"] for one in metrics["by_covariate"]} == {"mmse"}
    assert len(list((tmp_path / "classes").glob("explanations-batch-*/*/explanation_map.nii.gz"))) == 2
    sources = {
        case["source_format"]
        for path in (tmp_path / "classes").rglob("explanations.json")
        for case in read(path)["cases"]
    }
    assert sources == {"dicom"}, "the model of NIfTI volumes classifies DICOM series"


@pytest.mark.pipeline
def test_search_commands_search_on_the_prepared_cohort(tmp_path: Path) -> None:
    write_dicom(tmp_path / "own-scans", 5, coarse=True)
    changes = {
        "/data/chest-ct": str(tmp_path / "own-scans"),
        "--output prepared\n": "--output prepared --spacing-mm 8 8 10\n",
        '{"steps": 2000}': json.dumps(TINY_TRIAL),
    }
    run(tmp_path, "search", changes)
    assert [row.state for row in table_in(tmp_path / "results" / "search").rows] == ["completed", "completed"]
    assert (tmp_path / "results" / "best_model" / "model_card.json").is_file()


@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("workflow", "paths", "model"),
    [
        ("atrial-fibrillation", ("/data/ecg", "/data/new-ecg"), "accepted_model"),
        ("care-purpose", ("/data/inpatients",), None),
        ("provider-fraud", ("/data/claims", "/data/new-claims"), "exported_model"),
    ],
)
def test_commands_of_signals_and_tables_are_planned(
    tmp_path: Path, workflow: str, paths: tuple[str, ...], model: str | None
) -> None:
    """The workflows run in their own tests; here, commands and job files of the page are checked against the workflow."""
    for path in paths:
        (tmp_path / Path(path).name).mkdir()
    if model:
        (tmp_path / "results" / model).mkdir(parents=True)
    run(tmp_path, workflow, {path: path.replace("/data", str(tmp_path)) for path in paths}, planned=True)
