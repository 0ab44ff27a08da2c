"""Layouts of other tools that are not read: refused with the steps to convert them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.cohort.files import DATASET_FILE
from medweave_steps.io.cohort.nnunet import FIRST_CHANNEL, MSD_FORM
from medweave_steps.io.cohort.signals import is_header
from medweave_steps.io.findings import FindingError, notice, refuse
from medweave_steps.io.nifti.pairing import Pairing
from medweave_steps.io.nifti.volume import SUFFIXES, stem

_BIDS_FILE = "dataset_description.json"
_BIDS_FOLDERS = {"anat", "ct", "pet", "func", "dwi", "fmap", "perf", "swi"}
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bz2", ".xz", ".zst", ".iso", ".gz")
_OTHER_FORMATS = {
    ".mha": "MetaImage", ".mhd": "MetaImage", ".nrrd": "NRRD", ".nhdr": "NRRD", ".hdr": "Analyze", ".mgz": "FreeSurfer",
    ".mnc": "MINC", ".npz": "NumPy", ".npy": "NumPy", ".h5": "HDF5", ".mat": "MATLAB",
}  # fmt: skip


def refuse_unread_layout(names: Sequence[str], all_names: Sequence[str], pairing: Pairing) -> None:
    """Refuse a folder of NIfTI files in a layout that a plain folder must not be taken for.

    Args:
        names: the NIfTI files.
        all_names: all files of the cohort.
        pairing: the masks and volumes among `names`.
    Raises:
        FindingError: names the layout and says what to convert.
    """
    below = sum(PurePosixPath(name).name == DATASET_FILE for name in all_names)
    if below:
        raise _foreign(
            "data sets in subfolders",
            seen=f"{below} dataset.json in subfolders of --cohort",
            do="set --cohort to the folder that contains dataset.json, one data set at a time",
        )
    if any(PurePosixPath(name).name == _BIDS_FILE for name in all_names) or any(map(_looks_like_bids, names)):
        raise _foreign(
            "BIDS without sub-<label>/anat/ in --cohort",
            seen="dataset_description.json, or NIfTI files below sub-<label>/",
            do="set --cohort to the folder that contains sub-<label>/anat/, or convert the volumes to a data set with dataset.json "
            "(MSD): " + MSD_FORM,
        )
    volumes = [image for image in pairing.masks if stem(image).endswith(FIRST_CHANNEL)]
    mask_stems = {stem(mask) for mask in pairing.volumes}
    if any(stem(image).removesuffix(FIRST_CHANNEL) in mask_stems for image in volumes):
        raise _foreign(
            "nnU-Net, without its dataset.json",
            seen=f"{len(volumes)} volumes whose names end with {FIRST_CHANNEL}",
            do="copy dataset.json of the data set to the folder that contains imagesTr/ and labelsTr/",
        )
    structures = _structure_folders(pairing)
    if structures:
        raise _foreign(
            "one mask file for each structure (TotalSegmentator and others)",
            seen=f"{structures} volumes with several masks that have other names",
            do="write one label map per volume (0 background, 1, 2, ... structures) to labels/<name of the volume>, "
            "and declare the labels in cohort_card.json",
        )


def find_unread_files(names: Sequence[str]) -> tuple[set[str], list[Finding]]:
    """Return the archives and the files of image formats that are not read, with one notice for each kind."""
    archives = [name for name in names if name.lower().endswith(_ARCHIVES) and not name.lower().endswith(SUFFIXES)]
    has_records = any(map(is_header, names))  # of WFDB, whose data may be in MATLAB files
    others = [
        name for name in names if _suffix(name) in _OTHER_FORMATS and not (has_records and _suffix(name) == ".mat")
    ]
    findings = []
    if archives:
        findings.append(
            notice(
                "archive",
                f"{len(archives)} {'archive is' if len(archives) == 1 else 'archives are'} ignored: archives are not opened.",
                seen=", ".join(sorted({_suffix(name) for name in archives})),
                do="unpack the archives that belong to the cohort and run check again, or remove them",
            )
        )
    if others:
        findings.append(
            notice(
                "unread-format",
                f"{len(others)} {'file' if len(others) == 1 else 'files'} of an unsupported image format ignored.",
                seen=", ".join(sorted({_OTHER_FORMATS[_suffix(name)] for name in others})),
                do="convert volumes and masks to NIfTI, or remove the files",
            )
        )
    return {*archives, *others}, findings


def _suffix(name: str) -> str:
    return PurePosixPath(name.lower()).suffix


def _foreign(layout: str, *, seen: str, do: str) -> FindingError:
    return refuse(
        "foreign-layout",
        f"the folder has an unsupported layout: {layout}.",
        seen=seen,
        expected="volumes with masks in labels/, or a data set with dataset.json",
        do=do,
    )


def _looks_like_bids(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith("sub-") for part in parts[:-1]) and any(part in _BIDS_FOLDERS for part in parts[:-1])


def _structure_folders(pairing: Pairing) -> int:
    """Return the number of mask folders that hold two masks or more and none of a volume's name, below a volume."""
    folders: dict[PurePosixPath, int] = {}
    for mask in pairing.orphans():
        folder = PurePosixPath(mask).parent
        folders[folder] = folders.get(folder, 0) + 1
    homes = {PurePosixPath(image).parent for image in pairing.masks}
    # Masks of volumes that are absent lie with those of volumes that are present.
    paired = {PurePosixPath(mask).parent for mask, volumes in pairing.volumes.items() if volumes}
    return sum(count > 1 and folder.parent in homes and folder not in paired for folder, count in folders.items())
