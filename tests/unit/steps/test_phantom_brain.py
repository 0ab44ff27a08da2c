"""`medweave-step phantom brain`: the format of MSD Task01, the same from the same seed, and plausible contrasts."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import numpy as np
import pytest

from medweave_core.errors import UsageError
from medweave_steps.cli import main
from medweave_steps.phantom.brain import CONTRASTS, CORE, OEDEMA, RIM, BrainPhantom, BrainSpec, generate_brain


@pytest.fixture(scope="module")
def brain() -> BrainPhantom:
    return generate_brain(BrainSpec(seed=7, matrix_size=80))


def mean_of(brain: BrainPhantom, contrast: str, where: np.ndarray) -> float:
    return float(brain.image_CIJK[CONTRASTS.index(contrast)][where].mean())


def test_the_full_matrix_is_that_of_the_public_set() -> None:
    spec = BrainSpec(seed=0)
    assert (spec.shape_IJK, spec.spacing_mm) == ((240, 240, 155), 1.0)
    with pytest.raises(UsageError, match="matrix_size 8"):
        BrainSpec(seed=0, matrix_size=8)


def test_a_seed_is_a_patient(brain: BrainPhantom) -> None:
    again, other = (generate_brain(BrainSpec(seed=seed, matrix_size=80)) for seed in (7, 4))
    np.testing.assert_array_equal(again.image_CIJK, brain.image_CIJK)
    np.testing.assert_array_equal(again.label_IJK, brain.label_IJK)
    assert (other.label_IJK != brain.label_IJK).any()


def test_another_matrix_shows_the_same_tumour(brain: BrainPhantom) -> None:
    coarse = generate_brain(BrainSpec(seed=7, matrix_size=40))

    def centre_and_volume(phantom: BrainPhantom) -> tuple[np.ndarray, float]:
        inside = np.argwhere(phantom.label_IJK > 0)
        return (inside.mean(0) + 0.5) * phantom.spacing_mm, len(inside) * phantom.spacing_mm**3

    (fine_mm, fine_mm3), (coarse_mm, coarse_mm3) = centre_and_volume(brain), centre_and_volume(coarse)
    np.testing.assert_allclose(coarse_mm, fine_mm, atol=3)
    assert coarse_mm3 == pytest.approx(fine_mm3, rel=0.1)


def test_contrasts_are_those_of_a_tumour(brain: BrainPhantom) -> None:
    assert brain.enhances
    oedema, core, rim = (brain.label_IJK == value for value in (OEDEMA, CORE, RIM))
    tissue = (brain.image_CIJK[0] > 0) & (brain.label_IJK == 0)
    for contrast in ("FLAIR", "T2w"):
        assert mean_of(brain, contrast, oedema) > 1.3 * mean_of(brain, contrast, tissue)
    assert mean_of(brain, "T1gd", rim) > 1.3 * mean_of(brain, "T1gd", tissue)
    assert mean_of(brain, "T1gd", rim) > 1.5 * mean_of(brain, "T1gd", core)
    assert mean_of(brain, "T1w", core) < mean_of(brain, "T1w", tissue)
    assert (brain.image_CIJK[:, 0, 0] == 0).all(), "skull-stripped"
    assert not (brain.label_IJK[brain.image_CIJK[0] == 0] > 0).any(), "no tumour outside of the brain"


def test_some_tumours_do_not_enhance_and_all_are_of_a_size_that_occurs() -> None:
    brains = [generate_brain(BrainSpec(seed=seed, matrix_size=24)) for seed in range(30)]
    enhancing = [phantom.enhances for phantom in brains]
    assert 0.5 < np.mean(enhancing) < 1
    for phantom in brains:
        assert (RIM in phantom.label_IJK) <= phantom.enhances
        assert 5 < (phantom.label_IJK > 0).sum() * phantom.spacing_mm**3 / 1000 < 600, "mL"


@pytest.mark.slow
def test_the_folder_is_task01(tmp_path: Path) -> None:
    words = ["phantom", "brain", "--cases", "2", "--held-out-cases", "1", "--grid", "demo"]
    assert main([*words, "--output", str(tmp_path / "c"), "--run-report", str(tmp_path / "r.json")]) == 0
    data = json.loads((tmp_path / "c/dataset.json").read_text())
    assert data["modality"] == {"0": "FLAIR", "1": "T1w", "2": "T1gd", "3": "T2w"}
    assert data["labels"]["3"] == "enhancing tumour"
    assert (data["tensorImageSize"], data["numTraining"]) == ("4D", 3)
    assert "Synthetic" in data["description"]
    image = nibabel.load(tmp_path / "c" / data["training"][0]["image"])
    label = nibabel.load(tmp_path / "c" / data["training"][0]["label"])
    assert (image.shape, label.shape) == ((64, 64, 41, 4), (64, 64, 41))
    np.testing.assert_array_equal(image.affine, label.affine)
    card = json.loads((tmp_path / "c/cohort_card.json").read_text())
    assert card["synthetic"] is True
    assert card["faces"] == "absent"
    assert json.loads((tmp_path / "c/splits.json").read_text()) == {"test": ["heldout_001"]}


def test_brains_have_one_format_per_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phantom", "brain", "--format", "both", "--output", str(tmp_path / "c")]) == 2
    assert "msd or dicom" in capsys.readouterr().err
