"""Options of `phantom`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_core.errors import UsageError
from medweave_steps.runtime.options import check_option, option

Kind = Literal["lung", "brain", "skin", "xray", "t1", "ecg", "claims", "inpatients"]
FORMATS: Mapping[Kind, tuple[str, ...]] = {
    "lung": ("dicom", "msd", "both"), "brain": ("msd", "dicom"), "skin": (), "xray": (), "t1": ("bids", "dicom"),
    "ecg": (), "claims": (), "inpatients": (),
}  # fmt: skip
"""Output formats of each kind; none where it has only one."""
_VOLUMES: tuple[Kind, ...] = ("lung", "brain", "t1")
_PATIENTS: tuple[Kind, ...] = ("lung", "brain", "skin", "xray")
_OF_KINDS: Mapping[str, tuple[Kind, ...]] = {
    "transfer_syntax": _VOLUMES, "grid": _VOLUMES, "image_size": ("skin", "xray"), "cases": _PATIENTS,
    "held_out_cases": _PATIENTS, "subjects": ("t1",), "nodules": ("lung",), "recordings": ("ecg",),
    "rows": ("claims", "inpatients"), "listed_rows": ("claims",),
}  # fmt: skip
"""Kinds that an option applies to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomConfig:
    """Options of `phantom`."""

    kind: Kind = option(
        "anatomy: chest CT with nodules, brain MR with tumors, photographs of skin lesions, chest X-rays with findings, "
        "T1-weighted heads of groups of subjects, or ECG recordings of four rhythms; or a table: claims of providers, or "
        "inpatients with their codes",
        positional=True,
    )
    output: Path = option("folder to write; must not exist", metavar="DIR")
    cases: int = option("number of patients for training and validation; one series each", default=8)
    held_out_cases: int = option("number of additional patients, assigned to the test split in splits.json", default=0)
    subjects: int = option(
        "number of subjects (t1), in the proportions of the published table; 1193 are the whole table", default=24
    )
    recordings: int = option(
        "number of recordings (ecg), in the proportions of the published table; 8528 are the whole table", default=200
    )
    seed: int = option("random seed of the --cases patients, --subjects, --recordings or --rows", default=1)
    held_out_seed: int = option("random seed of the held-out patients; must differ from --seed", default=7919)
    rows: int = option("number of rows of a table (claims, inpatients)", default=20_000)
    listed_rows: int = option("rows of providers that are on the exclusion list (claims)", default=1_400)
    nodules: tuple[int, int] = option(
        "minimum and maximum number of nodules per patient (lung); held-out patients always have 2 to 6",
        default=(2, 6),
        metavar="LOW HIGH",
    )
    format: Literal["dicom", "msd", "both", "bids"] | None = option(
        "output format (default: dicom for lung, msd for brain, bids for t1); the other kinds have one format each",
        default=None,
    )
    transfer_syntax: Literal["explicit", "rle", "jpeg2000"] = option(
        "DICOM pixel encoding: explicit little endian, RLE lossless, or JPEG 2000 lossless", default="explicit"
    )
    grid: Literal["scanner", "demo"] = option("matrix size and voxel spacing (lung, brain, t1)", default="scanner")
    image_size: int = option("columns and rows of images (skin, xray)", default=96, metavar="PIXELS")

    def __post_init__(self) -> None:
        formats = FORMATS[self.kind]
        if self.format not in (None, *formats):
            raise UsageError(
                f"phantom {self.kind}: invalid value of --format.",
                seen=str(self.format),
                expected=" or ".join(formats) or f"no value: {self.kind} has one format",
            )
        for name, kinds in _OF_KINDS.items():
            value = getattr(self, name)
            is_default = value == self.__dataclass_fields__[name].default
            expected = f"no value: the option applies only to {', '.join(kinds)}"
            check_option(self.kind in kinds or is_default, name, value, expected)
        check_option(self.subjects >= 1, "subjects", self.subjects, "at least 1")
        check_option(self.recordings >= 1, "recordings", self.recordings, "at least 1")
        check_option(self.rows >= 1, "rows", self.rows, "at least 1")
        fits = 0 <= self.listed_rows <= self.rows or self.kind != "claims"
        check_option(fits, "listed_rows", self.listed_rows, f"0 to {self.rows}, the number of --rows")
        if not 32 <= self.image_size <= 1024:
            raise UsageError("invalid value of --image-size.", seen=str(self.image_size), expected="32 to 1024 pixels")
        if self.cases < 0 or self.held_out_cases < 0 or self.cases + self.held_out_cases == 0:
            raise UsageError(
                "invalid number of patients.",
                seen=f"--cases {self.cases} --held-out-cases {self.held_out_cases}",
                expected="0 or more each, at least 1 in total",
            )
        if not 0 <= self.nodules[0] <= self.nodules[1] <= 12:
            raise UsageError(
                "invalid value of --nodules.",
                seen=" ".join(map(str, self.nodules)),
                expected="two integers from 0 to 12, in ascending order",
            )
        if min(self.seed, self.held_out_seed) < 0 or (self.held_out_cases and self.seed == self.held_out_seed):
            raise UsageError(
                "invalid seeds.",
                seen=f"--seed {self.seed} --held-out-seed {self.held_out_seed}",
                expected="two different integers, 0 or more, so that held-out patients differ from the others",
            )
