"""Options of `phantom`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medweave_core.errors import UsageError
from medweave_steps.runtime.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomConfig:
    """Options of `phantom`."""

    kind: Literal["lung", "brain", "skin", "xray"] = option(
        "anatomy: chest CT with nodules, brain MR with tumors, photographs of skin lesions, or chest X-rays with findings",
        positional=True,
    )
    output: Path = option("folder to write; must not exist", metavar="DIR")
    cases: int = option("number of patients for training and validation; one series each", default=8)
    held_out_cases: int = option("number of additional patients, assigned to the test split in splits.json", default=0)
    seed: int = option("random seed of the --cases patients", default=1)
    held_out_seed: int = option("random seed of the held-out patients; must differ from --seed", default=7919)
    nodules: tuple[int, int] = option(
        "minimum and maximum number of nodules per patient (lung); held-out patients always have 2 to 6",
        default=(2, 6),
        metavar="LOW HIGH",
    )
    format: Literal["dicom", "msd", "both"] | None = option(
        "output format (default: dicom for lung, msd for brain); skin and xray have one format each", default=None
    )
    transfer_syntax: Literal["explicit", "rle", "jpeg2000"] = option(
        "DICOM pixel encoding: explicit little endian, RLE lossless, or JPEG 2000 lossless", default="explicit"
    )
    grid: Literal["scanner", "demo"] = option("matrix size and voxel spacing (lung, brain)", default="scanner")
    image_size: int = option("columns and rows of images (skin, xray)", default=96, metavar="PIXELS")

    def __post_init__(self) -> None:
        if self.kind == "brain" and self.format == "both":
            raise UsageError(
                "phantom brain: invalid value of --format.",
                seen=self.format,
                expected="msd or dicom; both is for lung only",
            )
        if self.kind in ("skin", "xray") and (self.format, self.transfer_syntax, self.grid) != (
            None,
            "explicit",
            "scanner",
        ):
            raise UsageError(
                f"phantom {self.kind}: --format, --transfer-syntax and --grid apply to lung and brain only.",
                seen=f"--format {self.format}, --transfer-syntax {self.transfer_syntax}, --grid {self.grid}",
                expected="none of these options; --image-size sets the size of images",
            )
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
