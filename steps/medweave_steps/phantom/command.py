"""`medweave-step phantom KIND`: a synthetic cohort in the formats of a hospital or a public data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medweave_steps.phantom.config import PhantomConfig
from medweave_steps.runtime.verb import StepContext, Verb

DESCRIPTION = """\
Generates a synthetic cohort with ground truth, to try the pipeline and to compare methods. The output depends only on the
seeds. Results on synthetic data say nothing about performance on patients.

lung: chest CT with body, lungs, airways, vessels, bones, heart, and nodules of 4 to 30 mm.
--format dicom writes series-0001/*.dcm, ground-truth/*.dcm (DICOM SEG), splits.json and cohort_card.json;
--format msd writes the same cohort as an MSD Task06 folder (imagesTr, labelsTr, dataset.json);
--format both writes dicom/ and Task06_Lung/.
--grid scanner: 512 x 512 pixels of 0.6 to 0.9 mm, a slice every 1 to 2.5 mm;
--grid demo: 256 x 256 pixels of 1.4 to 1.6 mm, a slice every 2 to 2.5 mm.

brain: skull-stripped brains in four MR contrasts (FLAIR, T1w, T1gd, T2w; arbitrary units), each with a tumor: edema, a
non-enhancing core and, in most cases, an enhancing rim.
--format msd writes an MSD Task01 folder; --format dicom writes the same voxels as one study per patient:
study-0001/{flair,t1w,t1gd,t2w}/*.dcm (MR), ground-truth/*.dcm (DICOM SEG with three segments, referencing FLAIR), splits.json
and cohort_card.json.
--grid scanner: 240 x 240 x 155 voxels of 1 mm, as in the public data set; --grid demo: 64 x 64 x 41 voxels of 3.75 mm.

skin: photographs of skin lesions of eight classes, whose borders and structures differ and whose colors do not, in the format of
ISIC 2019: ISIC_2019_Training_Input/ISIC_*.jpg, ISIC_2019_Training_GroundTruth.csv and ISIC_2019_Training_Metadata.csv. Some
lesions have several photographs with one lesion_id.

xray: frontal chest X-rays as DICOM (DX; some MONOCHROME1) in images/, with the table of NIH ChestX-ray14
(Data_Entry_2017_v2020.csv): any number of five findings for each image, and several images of some patients.
--image-size sets the columns and rows of skin and xray.

t1: T1-weighted heads of --subjects subjects of four groups (AD, pMCI, sMCI, NC) in the proportions of a published table of 1,193
scans, with its sexes, ages and MMSE scores (Akintoye et al. 2021, table 2). Ventricles are larger and hippocampi smaller from NC to
sMCI, pMCI and AD; the sizes are those of the phantom, not of patients.
--format bids writes sub-0001/anat/sub-0001_T1w.nii.gz, participants.tsv, brain masks in derivatives/brain/ and label maps of
ventricle and hippocampus in derivatives/regions/; --format dicom writes sub-0001/*.dcm (MR), ground-truth/*.dcm (DICOM SEG), the
same table and brain masks.
--grid scanner: 120 x 140 x 120 voxels of 1.6 mm; --grid demo: 96 x 112 x 96 voxels of 2 mm.

claims: --rows claims of providers in the 29 columns of the public file of Medicare Part B (claims.tsv, one row for each
provider, procedure and place of service), an exclusion list in the columns of the OIG's LEIE (exclusions.csv), and the schema
for encode-table (schema.yml). --listed-rows belong to providers on the list; the claims do not say so. No NPI belongs to anyone.

inpatients: --rows inpatients as a sparse binary matrix of 14,637 codes (codes.npz), with the 14 care purposes in the
proportions of a published table of 116,697 inpatients (García Henao et al. 2020, table 1) in inpatients.csv, and schema.yml.

ecg: --recordings ECG recordings of one lead, 9 to 61 s at 300 Hz, in mV, in the format of the PhysioNet/CinC Challenge 2017:
training2017/A*.mat and A*.hea (WFDB), and training2017/REFERENCE.csv. Four rhythms in the proportions of a published table of 8,528
recordings (García Henao et al. 2020, table 2): N normal, A atrial fibrillation (irregular, without P waves), O other (ectopic
beats), ~ noisy."""
EXAMPLE = "medweave-step phantom lung --output cohort --cases 8 --held-out-cases 2 --grid demo"


def run(config: PhantomConfig, context: StepContext) -> Mapping[str, Any]:
    """Write the cohort; return counts of patients."""
    from medweave_steps.phantom.brain_cohort import write_brains
    from medweave_steps.phantom.claims import write_claims
    from medweave_steps.phantom.cohort import write_cohort
    from medweave_steps.phantom.ecg_cohort import write_recordings
    from medweave_steps.phantom.inpatients import write_inpatients
    from medweave_steps.phantom.skin_cohort import write_skin
    from medweave_steps.phantom.t1_cohort import write_heads
    from medweave_steps.phantom.xray_cohort import write_xrays

    writers = {
        "lung": write_cohort, "brain": write_brains, "skin": write_skin, "xray": write_xrays, "t1": write_heads,
        "claims": write_claims, "inpatients": write_inpatients, "ecg": write_recordings,
    }  # fmt: skip
    return writers[config.kind](config, context)


VERB = Verb(name="phantom", description=DESCRIPTION, example=EXAMPLE, config=PhantomConfig, run=run)
