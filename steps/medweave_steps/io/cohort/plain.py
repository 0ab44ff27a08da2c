"""Plain folders of NIfTI files: volumes with their masks, or one file for each MR contrast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medweave_core.contracts.volume import CT_CHANNELS
from medweave_steps.io.cohort.contrast_files import has_contrast_files, read_contrast_files
from medweave_steps.io.cohort.discovery import case_id_of_path
from medweave_steps.io.cohort.foreign_layouts import refuse_unread_layout
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort
from medweave_steps.io.findings import SeriesName
from medweave_steps.io.nifti.pairing import PAIRING_RULE, pair_masks


def read_plain(
    names: Sequence[str], everything: Sequence[str], numbers: Mapping[str, int], wanted: tuple[str, ...] = ()
) -> ListedCohort:
    """Return the volumes of a plain folder with their masks.

    Args:
        names: the NIfTI files, sorted.
        everything: all files of the cohort.
        numbers: of each file among all files of the cohort, sorted by path, from 1.
        wanted: MR contrasts to read, in order; the last word of each file name is then a contrast.
    Raises:
        UsageError: no file is named after a wanted contrast.
        FindingError: the folder has the layout of another tool.
    """
    pairing = pair_masks(names)
    refuse_unread_layout(names, everything, pairing)
    if wanted not in ((), CT_CHANNELS) or has_contrast_files(list(pairing.masks)):
        return read_contrast_files(pairing, numbers, wanted)
    case_names = {
        image: SeriesName(case_id=case_id_of_path(image), ordinal=ordinal)
        for ordinal, image in enumerate(pairing.masks, start=1)
    }
    refusals = pairing.refusals(case_names.__getitem__, numbers)
    masks = dict(pairing.pairs())
    cases = [
        ListedCase(
            name=name, files=(image,), mask=masks.get(image), errors=(refusals[image],) if image in refusals else ()
        )
        for image, name in case_names.items()
    ]
    return ListedCohort(cases=tuple(cases), findings=tuple(pairing.notices(numbers)), rule=PAIRING_RULE)
