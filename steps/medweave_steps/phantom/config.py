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

    kind: Literal["lung", "brain"] = option("what the scans show", positional=True)
    output: Path = option("folder to write; must not exist", metavar="DIR")
    cases: int = option("patients to develop on; one series each", default=8)
    held_out_cases: int = option("more patients, fixed as the test split in splits.json", default=0)
    seed: int = option("seed of the patients to develop on", default=1)
    held_out_seed: int = option("seed of the held-out patients; must differ from --seed", default=7919)
    nodules: tuple[int, int] = option(
        "fewest and most nodules of a patient to develop on (lung); held-out patients always have 2 to 6",
        default=(2, 6),
        metavar="LOW HIGH",
    )
    format: Literal["dicom", "msd", "both"] | None = option(
        "what to write (default: dicom for lung, msd for brain)", default=None
    )
    transfer_syntax: Literal["explicit", "rle", "jpeg2000"] = option(
        "DICOM pixel encoding: explicit little endian, RLE lossless, or JPEG 2000 lossless", default="explicit"
    )
    grid: Literal["scanner", "demo"] = option("matrix and spacing", default="scanner")

    def __post_init__(self) -> None:
        if self.kind == "brain" and self.format not in (None, "msd"):
            raise UsageError(
                "phantom brain: --format cannot be used.",
                seen=str(self.format),
                expected="msd, the only format of brains",
            )
        if self.cases < 0 or self.held_out_cases < 0 or self.cases + self.held_out_cases == 0:
            raise UsageError(
                "the number of patients cannot be used.",
                seen=f"--cases {self.cases} --held-out-cases {self.held_out_cases}",
                expected="0 or more each, at least 1 in all",
            )
        if not 0 <= self.nodules[0] <= self.nodules[1] <= 12:
            raise UsageError(
                "--nodules cannot be used.",
                seen=" ".join(map(str, self.nodules)),
                expected="two numbers from 0 to 12, the smaller one first",
            )
        if min(self.seed, self.held_out_seed) < 0 or (self.held_out_cases and self.seed == self.held_out_seed):
            raise UsageError(
                "the seeds cannot be used.",
                seen=f"--seed {self.seed} --held-out-seed {self.held_out_seed}",
                expected="two different numbers, 0 or more: held-out patients must be other patients",
            )
