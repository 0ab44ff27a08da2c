"""Small photographs, radiographs and tables of targets as real files, and `check` and `preprocess` on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian

from medweave_core.contracts.cohort import CohortIndex
from medweave_steps.cli import main
from medweave_steps.io.cohort.prepared import read_index
from support.dicom_builder import uid

SOP_CLASSES = {
    "CR": "1.2.840.10008.5.1.4.1.1.1", "DX": "1.2.840.10008.5.1.4.1.1.1.1", "MG": "1.2.840.10008.5.1.4.1.1.1.2",
}  # fmt: skip


def noise(seed: int, shape: tuple[int, ...] = (20, 24, 3)) -> np.ndarray:
    """Return a smooth random image, uint8 [row, column] or [row, column, channel]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 7, *shape[2:])).astype(np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((shape[1], shape[0]), Image.Resampling.BICUBIC))


def save(path: Path, pixels: np.ndarray, **options: Any) -> Path:
    """Write an array as the image format that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def radiograph(key: str = "a", modality: str = "DX", stored: np.ndarray | None = None, **values: Any) -> Dataset:
    """Return a radiograph of 12 bits; values of None remove attributes."""
    stored = noise(len(key) + sum(map(ord, key)), (20, 24)).astype(np.uint16) * 16 if stored is None else stored
    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = SOP_CLASSES[modality], uid("image", key)
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = uid("study", key), uid("series", key)
    dataset.Modality, dataset.PatientID, dataset.PatientName = modality, f"patient-{key}", "Doe^Jane"
    dataset.ViewPosition, dataset.PresentationIntentType = "PA", "FOR PRESENTATION"
    dataset.Rows, dataset.Columns = stored.shape[-2:]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 0
    dataset.WindowCenter, dataset.WindowWidth = 2048, 4096
    dataset.PixelSpacing, dataset.ImagerPixelSpacing = [0.2, 0.1], [0.3, 0.3]
    dataset.PixelData = stored.astype("<u2").tobytes()
    for keyword, value in values.items():
        if value is None:
            delattr(dataset, keyword)
        else:
            setattr(dataset, keyword, value)
    return dataset


def save_dicom(path: Path, dataset: Dataset) -> Path:
    """Write a dataset, explicit little endian."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)
    return path


def save_table(path: Path, *lines: str) -> Path:
    """Write a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def skin_cohort(folder: Path, names: Sequence[str] = "ABABABAB", **card: Any) -> Path:
    """Write a color JPEG `image-N.jpg` for each name of a class, and their table `targets.csv` (image, class, patient_id)."""
    for number in range(len(names)):
        save(folder / "images" / f"image-{number}.jpg", noise(number), quality=95)
    rows = [f"image-{number},{name},P{number}" for number, name in enumerate(names)]
    save_table(folder / "targets.csv", "image,class,patient_id", *rows)
    (folder / "cohort_card.json").write_text(json.dumps({"synthetic": True, **card}))
    return folder


def check(cohort: Path, *words: str) -> tuple[int, Mapping[str, Any], CohortIndex | None]:
    """Run `check`; return its exit code, the results of its report, and the index if it was written."""
    out = cohort.parent / f"{cohort.name}-out"
    index, report = out / "cohort_index.json", out / "report.json"
    index.unlink(missing_ok=True)
    options = ("--cohort", str(cohort), "--output", str(index), "--run-report", str(report), "--num-threads", "2")
    code = main(["check", *options, *words])
    return code, _results(report), read_index(index) if index.is_file() else None


def preprocess(cohort: Path, *words: str) -> tuple[int, Path, Mapping[str, Any]]:
    """Run `check` and `preprocess`; return its exit code, its output, and the results of its report."""
    assert check(cohort)[0] == 0
    out = cohort.parent / f"{cohort.name}-out"
    options = (
        "--cohort",
        str(cohort),
        "--cohort-index",
        str(out / "cohort_index.json"),
        "--output",
        str(out / "prepared"),
    )
    code = main(["preprocess", *options, "--run-report", str(out / "prepared.json"), "--num-threads", "1", *words])
    return code, out / "prepared", _results(out / "prepared.json")


def _results(report: Path) -> Mapping[str, Any]:
    return (json.loads(report.read_text()).get("results") or {}) if report.is_file() else {}
