"""`medweave-step phantom KIND`: a synthetic cohort of chest CT or brain MR, in the formats of a hospital or a challenge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medweave_core.errors import UsageError
from medweave_steps.runtime.options import option
from medweave_steps.runtime.verb import StepContext, Verb

DESCRIPTION = """lung writes a cohort of synthetic chest CT: body, lungs, airways, vessels, bones, heart, and nodules of 4 to 30 mm
with their ground truth. Everything follows from the seeds. Synthetic data is good for trying the pipeline and for
comparing methods; it says nothing about patients.

--format dicom writes series-0001/*.dcm, ground-truth/*.dcm (DICOM SEG), splits.json and cohort_card.json;
--format msd writes the same as an MSD Task06 folder (imagesTr, labelsTr, dataset.json);
--format both writes dicom/ and Task06_Lung/.

--grid scanner draws 512 x 512 pixels of 0.6 to 0.9 mm and slices every 1 to 2.5 mm;
--grid demo draws 256 x 256 pixels of 1.4 to 1.6 mm and slices every 2 to 2.5 mm.

brain writes an MSD Task01 folder (--format msd only): skull-stripped brains in four MR contrasts (FLAIR, T1w, T1gd, T2w;
arbitrary units), each with a tumour: oedema, a core that does not enhance and, in most, a rim that does.
--grid scanner draws 240 x 240 x 155 voxels of 1 mm, as the public set has; --grid demo 64 x 64 x 41 of 3.75 mm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomConfig:
    """What to write."""

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


def run(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the cohort; return counts of patients and lesions."""
    from medweave_steps.phantom.brain_cohort import write_brains
    from medweave_steps.phantom.cohort import write_cohort

    return write_brains(config, context) if config.kind == "brain" else write_cohort(config, context)


VERB = Verb(name="phantom", description=DESCRIPTION, config=PhantomConfig, run=run)
