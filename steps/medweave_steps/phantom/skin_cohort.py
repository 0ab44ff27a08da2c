"""A folder of synthetic skin lesions in the format of ISIC 2019: JPEG files, and two tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medweave_core.contracts.classes import ImageClass
from medweave_steps.phantom.patient import Patient
from medweave_steps.phantom.skin import CLASSES, SkinSpec, photograph
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext
from medweave_steps.runtime.write import atomic_directory

if TYPE_CHECKING:
    from medweave_steps.phantom.config import PhantomConfig

IMAGE_FOLDER = "ISIC_2019_Training_Input"
TRUTH_FILE = "ISIC_2019_Training_GroundTruth.csv"
METADATA_FILE = "ISIC_2019_Training_Metadata.csv"
_COLUMNS = (*CLASSES, "UNK")
_SITES = ("anterior torso", "upper extremity", "lower extremity", "head/neck", "posterior torso", "palms/soles")
_IMAGES_PER_LESION = (0.6, 0.25, 0.15)
_JPEG_QUALITY = 92


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lesion:
    """The only lesion of a patient, with one photograph or several."""

    patient: Patient
    name: str
    names_of_images: tuple[str, ...]
    age: int
    site: str
    sex: str


def write_skin(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the photographs and tables of every patient.

    Returns:
        the numbers of patients, of images, and of images by class.
    """
    from medweave_steps.phantom.cohort import describe, patients_of

    require("PIL.Image", extra="phantom")
    lesions = _lesions(patients_of(config, prefix="skin"))
    progress = context.progress(unit="patient", total=len(lesions), is_quick=True)
    with atomic_directory(config.output) as folder:
        (folder / IMAGE_FOLDER).mkdir()
        for lesion in lesions:
            _write_photographs(folder / IMAGE_FOLDER, lesion, config.image_size)
            progress.step(f"{lesion.patient.name}: {lesion.name}, {len(lesion.names_of_images)} images")
            for name in lesion.names_of_images:
                context.add_case(name, class_name=lesion.name, held_out=lesion.patient.held_out)
        _write_tables(folder, lesions)
        held_out = [name for lesion in lesions if lesion.patient.held_out for name in lesion.names_of_images]
        describe(folder, config, held_out, classes=[ImageClass(name=name) for name in CLASSES])
    names = [lesion.name for lesion in lesions for _ in lesion.names_of_images]
    by_class = {name: names.count(name) for name in CLASSES}
    return {"patients": len(lesions), "images": len(names), "images_by_class": by_class, "synthetic": True}


def _lesions(patients: Sequence[Patient]) -> list[_Lesion]:
    """Return a lesion for each patient; the classes take turns, so that each has its share."""
    lesions, number = [], 0
    for patient in patients:
        rng = np.random.default_rng(patient.chest_seed)
        count = int(rng.choice(3, p=_IMAGES_PER_LESION)) + 1
        lesions.append(
            _Lesion(
                patient=patient,
                name=CLASSES[(patient.ordinal - 1) % len(CLASSES)],
                names_of_images=tuple(f"ISIC_{number + i:07d}" for i in range(count)),
                age=int(rng.integers(4, 18)) * 5,
                site=str(rng.choice(_SITES)),
                sex=str(rng.choice(["male", "female"])),
            )
        )
        number += count
    return lesions


def _write_photographs(folder: Path, lesion: _Lesion, size: int) -> None:
    image = require("PIL.Image", extra="phantom")
    for view, name in enumerate(lesion.names_of_images):
        spec = SkinSpec(name=lesion.name, lesion_seed=lesion.patient.chest_seed, view=view, size=size)
        image.fromarray(photograph(spec)).save(folder / f"{name}.jpg", quality=_JPEG_QUALITY)


def _write_tables(folder: Path, lesions: Sequence[_Lesion]) -> None:
    truth = [
        [name, *("1.0" if column == lesion.name else "0.0" for column in _COLUMNS)]
        for lesion in lesions
        for name in lesion.names_of_images
    ]
    about = [
        [name, f"{lesion.age:.1f}", lesion.site, lesion.patient.name.upper(), lesion.sex]
        for lesion in lesions
        for name in lesion.names_of_images
    ]
    write_csv(folder / TRUTH_FILE, ("image", *_COLUMNS), truth)
    write_csv(folder / METADATA_FILE, ("image", "age_approx", "anatom_site_general", "lesion_id", "sex"), about)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table with a header line."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_NONE)
        writer.writerows([columns, *rows])
