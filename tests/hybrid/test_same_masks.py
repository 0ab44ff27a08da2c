"""The same model and the same cases give the same masks, bit for bit, whether the laptop, a Slurm job or a pod segments them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import yaml

from medweave.placement.bind import bind
from support import images
from support.chest_cohort import write_dicom, write_msd
from support.cwl_files import WORKFLOWS
from support.engine import Run, start
from support.exported import exported_model
from support.hybrid_runs import INFERENCE, committed_site, laptop
from support.testbed import Sites

INFER = WORKFLOWS / "lung-nodule-segmentation" / "infer.cwl"
CASES = 2
PLACES = {
    "laptop": {"deployment": "laptop"},
    "slurm": {"deployment": "slurm", "service": "normal"},
    "pods": {"deployment": INFERENCE, "service": "segment"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_model(tmp_path_factory.mktemp("model"))


def run_at(folder: Path, testbed: Sites, model: Path, cohort: Path, place: str) -> Run:
    """Run the inference pipeline with its segmentation bound to a place; return the run."""
    folder.mkdir()
    site = committed_site()
    site["roles"] |= dict.fromkeys(("segment", "gate"), PLACES[place])  # a site measures a model where it segments
    (folder / "site.yml").write_text(yaml.safe_dump(site))
    inputs = {"cohort": cohort, "segmentation_model": model}
    job = {name: {"class": "Directory", "path": str(path)} for name, path in inputs.items()} | {
        "cases_per_batch": 1,
        "identified": False,  # without a key, each run would give the cases other names
    }
    (folder / "job.yml").write_text(json.dumps(job))
    bound = folder / "streamflow.yml"
    bound.write_text(bind(INFER, str(folder / "site.yml"), bound, folder / "job.yml"))
    ended = start(folder, environment=laptop(testbed)).wait(400)
    assert ended.exit_code == 0, ended.stderr
    return ended


def masks(ended: Run) -> dict[str, str]:
    """Return the digest of the voxels and of the frames of each delivered mask, and of the files themselves."""
    digests = {}
    for file in sorted((ended.folder / "results").rglob("lesion_mask.*")):
        name = f"{file.parent.name}/{file.name}"
        pixels = pydicom.dcmread(file).PixelData if file.suffix == ".dcm" else nibabel.load(file).get_fdata().tobytes()
        digests[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        digests[f"{name}: voxels"] = hashlib.sha256(pixels).hexdigest()
    return digests


def where(ended: Run) -> set[str]:
    """Return the nodes or pods that segmented the cases, by the site's own names."""
    jobs = [event for event in ended.of_type("job.ended") if event["step"] == "/segment"]
    assert len(jobs) == CASES
    sites = [job["data"].get("site") or {} for job in jobs]
    return {site.get("nodes") or "".join(pod["uid"] for pod in site.get("pods", [])) or "here" for site in sites}


@pytest.mark.long  # of the laptop's and the pods' masks, `make hybrid` says the same
@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_laptop_slurm_and_pods_give_the_same_masks(tmp_path: Path, testbed: Sites, model: Path, kind: str) -> None:
    images.build("segment")
    cohort = tmp_path / "cohort"
    (write_dicom if kind == "dicom" else write_msd)(cohort, CASES)
    runs = {place: run_at(tmp_path / place, testbed, model, cohort, place) for place in PLACES}
    places = {place: where(ended) for place, ended in runs.items()}
    assert places["laptop"] == {"here"}
    assert places["slurm"] <= {"n1", "n2"}
    assert all(len(uid) == 36 for uid in places["pods"]), places
    masks_by_place = {place: masks(ended) for place, ended in runs.items()}
    assert len(masks_by_place["laptop"]) == CASES * (4 if kind == "dicom" else 2)
    assert masks_by_place["slurm"] == masks_by_place["laptop"]
    assert masks_by_place["pods"] == masks_by_place["laptop"]
    for file in (tmp_path / "laptop" / "results").rglob("lesion_mask.nii.gz"):
        share = np.mean(np.asanyarray(nibabel.load(file).dataobj) > 0)
        assert 0.001 < share < 0.9, f"{file.parent.name}: {share:.4f} of the voxels: nothing could differ"
