"""`medweave-step phantom skin` and `xray`: the formats of ISIC 2019 and NIH ChestX-ray14, the same from the same seed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image

from medweave_core.errors import UsageError
from medweave_steps.cli import main
from medweave_steps.io.hashing import digests_below
from medweave_steps.phantom.config import PhantomConfig
from medweave_steps.phantom.skin import CLASSES, SkinSpec, photograph
from medweave_steps.phantom.xray import XraySpec, radiograph


def write(folder: Path, kind: str, *words: str) -> Path:
    report = folder.with_name(f"{folder.name}-report.json")
    assert main(["phantom", kind, "--output", str(folder), "--run-report", str(report), *words]) == 0
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def test_skin_has_the_format_of_isic_2019(tmp_path: Path) -> None:
    folder = write(tmp_path / "skin", "skin", "--cases", "16", "--held-out-cases", "2", "--image-size", "48")
    truth = rows_of(folder / "ISIC_2019_Training_GroundTruth.csv")
    about = rows_of(folder / "ISIC_2019_Training_Metadata.csv")
    assert list(truth[0]) == ["image", *CLASSES, "UNK"]
    assert list(about[0]) == ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"]
    files = sorted((folder / "ISIC_2019_Training_Input").iterdir())
    assert [file.stem for file in files] == [row["image"] for row in truth] == [row["image"] for row in about]
    assert all(sorted(row[name] for name in (*CLASSES, "UNK")) == ["0.0"] * 8 + ["1.0"] for row in truth)
    with Image.open(files[0]) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (48, 48))
    lesions = [row["lesion_id"] for row in about]
    assert len(set(lesions)) == 18 < len(lesions), "some lesions have several photographs"
    held_out = json.loads((folder / "splits.json").read_text())["test"]
    assert {row["lesion_id"] for row in about if row["image"] in held_out} == {"HELDOUT_001", "HELDOUT_002"}
    card = json.loads((folder / "cohort_card.json").read_text())
    assert card["synthetic"]
    assert [one["name"] for one in card["classes"]] == list(CLASSES)


def test_a_seed_is_a_cohort_of_images(tmp_path: Path) -> None:
    for kind in ("skin", "xray"):
        first, again, other = (
            digests_below(write(tmp_path / f"{kind}-{n}", kind, "--cases", "3", "--image-size", "32", "--seed", seed))
            for n, seed in enumerate("112")
        )
        assert first == again
        assert first != other


def test_colors_of_the_classes_overlap_and_structures_differ() -> None:
    def of(name: str) -> np.ndarray:
        return np.stack([photograph(SkinSpec(name=name, lesion_seed=seed, size=48)) for seed in range(30)]).astype(
            float
        )

    means = {name: of(name).mean((1, 2)) for name in CLASSES}
    within = np.mean([values.std(0) for values in means.values()])
    between = np.std([values.mean(0) for values in means.values()], axis=0).mean()
    assert between < within / 2, "the mean color varies more within a class than between classes"


def test_findings_change_only_their_part_of_an_xray() -> None:
    plain, nodule, mass = (
        radiograph(XraySpec(patient_seed=4, findings=findings)).astype(int) for findings in ((), ("Nodule",), ("Mass",))
    )
    assert 0 < (abs(nodule - plain) > 400).sum() < (abs(mass - plain) > 400).sum() < plain.size / 5


def test_xray_has_the_format_of_chestxray14(tmp_path: Path) -> None:
    folder = write(tmp_path / "xray", "xray", "--cases", "12", "--held-out-cases", "2", "--image-size", "40")
    rows = rows_of(folder / "Data_Entry_2017_v2020.csv")
    assert list(rows[0])[:7] == [
        "Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age", "Patient Gender", "View Position",
    ]  # fmt: skip
    labels = {row["Finding Labels"] for row in rows}
    assert "No Finding" in labels
    assert any("|" in text for text in labels)
    seen = set()
    for row in rows:
        dataset = pydicom.dcmread(folder / "images" / row["Image Index"])
        assert (dataset.Modality, dataset.PatientID, dataset.pixel_array.shape) == ("DX", row["Patient ID"], (40, 40))
        assert dataset.WindowWidth > 1
        assert dataset.ImagerPixelSpacing[0] == 9
        seen.add(dataset.PhotometricInterpretation)
    assert seen == {"MONOCHROME1", "MONOCHROME2"}
    assert len({row["Patient ID"] for row in rows}) == 14 < len(rows)


@pytest.mark.parametrize("more", [{"format": "dicom"}, {"grid": "demo"}, {"transfer_syntax": "rle"}, {"image_size": 8}])
def test_options_without_effect_on_images_are_refused(more: dict) -> None:
    with pytest.raises(UsageError, match="|".join(f"--{name.replace('_', '-')}" for name in more)):
        PhantomConfig(kind="skin", output=Path("x"), **more)
