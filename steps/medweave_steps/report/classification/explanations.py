"""The maps of `explain` in the report of a classification: pictures, mass per region, and the sanity check."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.explanations import OVERLAY, RECORD_FILE, ExplainedCase, Explanations
from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.prepared import read_contract
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.report.words import figure, plural
from medweave_steps.runtime.imports import require

MOST_REGIONS = 4
"""Regions named for each picture: those with the largest ratio."""
WHOLE_BRAIN = "whole brain"
"""Row of the brain mask in the table of regions, after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedBatch:
    """The folder that `explain` wrote for one batch, and its record."""

    folder: Path
    record: Explanations


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationPicture:
    """A case with the picture of its map.

    Attributes:
        png: data URI.
        aspect: width over height.
        explained: class and calibrated probability.
        regions: ratio of the mass in each region to the region's share of the image, in words; empty without a label map.
    """

    case_id: str
    png: str
    aspect: float
    alt: str
    explained: str
    regions: tuple[str, ...]


def read_explained(folders: Sequence[Path]) -> list[ExplainedBatch]:
    """Read what `explain` wrote, of each batch.

    Raises:
        UserInputError: a record is missing or does not fit the contract, or the batches were explained differently.
    """
    where = f"the record of the explanations ({RECORD_FILE})"
    batches = [
        ExplainedBatch(folder=folder, record=read_contract(Explanations, folder / RECORD_FILE, where=where))
        for folder in folders
    ]
    kinds = {(batch.record.model_sha256, batch.record.layer) for batch in batches}
    if len(kinds) > 1:
        raise UserInputError(
            "the folders of --explanations are of different models or layers.",
            seen=f"{len(kinds)} pairs of model card and layer",
            expected="folders that explain wrote with one model and one layer",
            do="use all folders of the same run",
        )
    return batches


def layer_sentence(batches: Sequence[ExplainedBatch]) -> str:
    """Return method and layer with its grid."""
    layer = batches[0].record.layer
    grid, shape = (" × ".join(map(str, sides)) for sides in (layer.grid, layer.input_shape))
    return (
        f"Grad-CAM at layer {layer.name} ({layer.kind}): {grid} features for {shape} voxels; no map is finer than that. A map "
        "shows which parts of the image raise the output of the class; it does not prove that the class is right."
    )


def sanity_sentences(batches: Sequence[ExplainedBatch]) -> list[str]:
    """Return the verdict of the sanity check of each batch, equal ones once."""
    sentences = [
        "No sanity check with random weights was made." if check is None else check.sentence
        for check in (batch.record.sanity_check for batch in batches if batch.record.cases)
    ]
    return list(dict.fromkeys(sentences))


def explanation_pictures(batches: Sequence[ExplainedBatch], most: int) -> list[ExplanationPicture]:
    """Return the pictures of up to `most` cases, the classes in turn, cases with a map first.

    Raises:
        UserInputError: a picture is missing or was changed.
    """
    cases = [(batch, case) for batch in batches for case in batch.record.cases]
    seen: dict[str, int] = {}
    ranked = []
    for batch, case in sorted(cases, key=lambda pair: (pair[1].is_empty, pair[1].case_id)):
        turn = seen[case.explained_class] = seen.get(case.explained_class, 0) + 1
        ranked.append((case.is_empty, turn, case.explained_class, case.case_id, batch, case))
    ranked.sort(key=lambda row: row[:4])
    return [_picture(batch.folder, case) for *_, batch, case in ranked[:most]]


def _picture(folder: Path, case: ExplainedCase) -> ExplanationPicture:
    path = folder / case.case_id / OVERLAY
    if not path.is_file() or sha256_of_file(path) != case.files.get(OVERLAY):
        raise UserInputError(
            f"the picture of the explanation of {case.case_id} cannot be shown.",
            seen="no such file" if not path.is_file() else "a file that was modified after explain wrote it",
            expected=f"{OVERLAY} with the SHA-256 of {RECORD_FILE}",
            do="copy the output folder of explain again, or run explain again",
        )
    densest = sorted(case.regions, key=lambda region: -(region.ratio or 0))[:MOST_REGIONS]
    explained = f"{case.explained_class} {figure(case.probability)}"
    with require("PIL.Image", extra="report").open(path) as picture:
        width, height = picture.size
    return ExplanationPicture(
        case_id=case.case_id,
        png="data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii"),
        aspect=width / height,
        alt=f"Grad-CAM map of {case.case_id} for {case.explained_class}" + (", empty" if case.is_empty else ""),
        explained=explained if case.is_predicted else f"{explained} (not predicted)",
        regions=("empty map",) if case.is_empty else tuple(f"{one.name} {figure(one.ratio, 1)}" for one in densest),
    )


def region_rows(batches: Sequence[ExplainedBatch]) -> list[tuple[str, str, list[str]]]:
    """Return for each explained class and region: cases, mean share of the mass and of the image, and mean ratio.

    The brain mask, where the volumes have one, is the last row of its class.
    """
    found: dict[tuple[str, bool, str], list[tuple[float, float, float]]] = {}
    for batch in batches:
        for case in batch.record.cases:
            for region in case.regions:
                if region.mass_share is not None and region.ratio is not None:
                    shares = (region.mass_share, region.volume_share, region.ratio)
                    found.setdefault((case.explained_class, False, region.name), []).append(shares)
            mass, volume = case.brain_mass_share, case.brain_volume_share
            if mass is not None and volume:
                found.setdefault((case.explained_class, True, WHOLE_BRAIN), []).append((mass, volume, mass / volume))
    rows = []
    for (name, _, region_name), shares_of_cases in sorted(found.items()):
        mass, volume, ratio = (sum(column) / len(column) for column in zip(*shares_of_cases, strict=True))
        counted = plural(len(shares_of_cases), "case")
        rows.append((name, region_name, [counted, figure(mass, 3), figure(volume, 3), figure(ratio, 1)]))
    return rows
