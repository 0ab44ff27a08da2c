"""`medweave-step phantom KIND`: a synthetic cohort of chest CT or brain MR, in the formats of a hospital or a challenge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_steps.phantom.config import PhantomConfig
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


def run(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the cohort; return counts of patients and lesions."""
    from medweave_steps.phantom.brain_cohort import write_brains
    from medweave_steps.phantom.cohort import write_cohort

    return write_brains(config, context) if config.kind == "brain" else write_cohort(config, context)


VERB = Verb(name="phantom", description=DESCRIPTION, config=PhantomConfig, run=run)
