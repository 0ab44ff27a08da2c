"""Layouts of other tools: nnU-Net data sets of one channel are read; other layouts are refused, with the steps to convert them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.cohort.files import DATASET_FILE
from medweave_steps.io.findings import FindingError, notice, refuse
from medweave_steps.io.nifti.pairing import Pairing
from medweave_steps.io.nifti.volume import SUFFIXES, stem

_BIDS_FILE = "dataset_description.json"
_BIDS_FOLDERS = {"anat", "ct", "pet", "func", "dwi", "fmap", "perf", "swi"}
_FIRST_CHANNEL = "_0000"
_MSD_FORM = (
    "modality {'0': 'CT'}, labels {'1': 'name'}, training [{'image': ..., 'label': ...}], test [...]; contrasts of one case "
    "in the fourth axis of one file"
)
# Last word of the name of an MR file. T1 and T2 alone may be two time points of CT.
_MR_WORDS = {"flair", "t1w", "t1n", "t1c", "t1ce", "t1gd", "t2w", "t2f", "dwi", "adc", "swi", "bold", "mprage"}
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".bz2", ".xz", ".zst", ".iso", ".gz")
_OTHER_FORMATS = {
    ".mha": "MetaImage", ".mhd": "MetaImage", ".nrrd": "NRRD", ".nhdr": "NRRD", ".hdr": "Analyze", ".mgz": "FreeSurfer",
    ".mnc": "MINC", ".npz": "NumPy", ".npy": "NumPy", ".h5": "HDF5", ".mat": "MATLAB",
}  # fmt: skip


def dataset_as_msd(dataset: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return a `dataset.json` in the form of the Medical Segmentation Decathlon; that form is returned unchanged.

    nnU-Net (version 1 and 2) numbers the channels of a case in its file names. Data sets of one channel are read.

    Args:
        dataset: content of the file.
        names: all files of the cohort, relative to it.
    Raises:
        FindingError: an nnU-Net data set that cannot be read so; names the format and the steps to convert it.
    """
    if "channel_names" in dataset or ("file_ending" in dataset and "training" not in dataset):
        return _nnunet_2(dataset, names)
    present = set(names)
    training = [_first_channel(item, present) for item in _list(dataset.get("training"))]
    test = [_first_channel(item, present) for item in _list(dataset.get("test"))]
    if training or test:
        return {**dataset, "training": training, "test": test}
    return dataset


def refuse_foreign_layout(names: Sequence[str], all_names: Sequence[str], pairing: Pairing) -> None:
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
    if any(PurePosixPath(name).name == _BIDS_FILE for name in all_names) or any(map(_is_bids, names)):
        raise _foreign(
            "BIDS",
            seen="dataset_description.json, or NIfTI files below sub-<label>/",
            do="convert the volumes to a data set with dataset.json (MSD): " + _MSD_FORM,
        )
    volumes = [image for image in pairing.masks if stem(image).endswith(_FIRST_CHANNEL)]
    mask_stems = {stem(mask) for mask in pairing.volumes}
    if any(stem(image).removesuffix(_FIRST_CHANNEL) in mask_stems for image in volumes):
        raise _foreign(
            "nnU-Net, without its dataset.json",
            seen=f"{len(volumes)} volumes whose names end with {_FIRST_CHANNEL}",
            do="copy dataset.json of the data set to the folder that contains imagesTr/ and labelsTr/",
        )
    contrasts = sum(re.split(r"[^a-z0-9]+", stem(image).lower())[-1] in _MR_WORDS for image in pairing.masks)
    if contrasts:
        raise _foreign(
            "one file for each MR contrast (BraTS and others)",
            seen=f"{contrasts} files named after MR contrasts; plain NIfTI files have no modality and are read as CT",
            do="merge the contrasts of each case into one file, as a data set with dataset.json (MSD): " + _MSD_FORM,
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
    others = [name for name in names if _suffix(name) in _OTHER_FORMATS]
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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _nnunet_2(dataset: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    channels, labels = dataset.get("channel_names"), dataset.get("labels")
    ending = str(dataset.get("file_ending", ".nii.gz"))
    if not isinstance(channels, Mapping) or len(channels) != 1:
        number = len(channels) if isinstance(channels, Mapping) else "no usable"
        raise _nnunet_refusal(f"{number} channels", "one channel")
    if ending not in SUFFIXES or "dataset" in dataset:
        raise _nnunet_refusal(
            f"file_ending {ending}" if ending not in SUFFIXES else "a list 'dataset'", ".nii.gz or .nii"
        )
    if not isinstance(labels, Mapping) or not all(_is_number(value) for value in labels.values()) or "ignore" in labels:
        raise _nnunet_refusal(
            "labels that are regions, ignore labels, or labels without a number", "one number per label"
        )
    if any(name.startswith("images") and stem(name).endswith("_0001") for name in names):
        raise _nnunet_refusal("a second channel (_0001) that dataset.json does not declare", "one channel")
    masks = {stem(name): name for name in _below("labelsTr", names, ending)}
    images = {stem(name).removesuffix(_FIRST_CHANNEL): name for name in _below("imagesTr", names, ending)}
    test = _below("imagesTs", names, ending)
    cases = sorted(masks.keys() | images.keys())
    expected = {case: images.get(case, f"imagesTr/{case}{_FIRST_CHANNEL}{ending}") for case in cases}
    return {
        "modality": dict(channels),
        "labels": {str(value): name for name, value in labels.items()},
        "training": [{"image": expected[case], "label": masks[case]} for case in cases if case in masks],
        "test": [*[expected[case] for case in cases if case not in masks], *test],
    }


def _below(folder: str, names: Sequence[str], ending: str) -> list[str]:
    return [name for name in names if name.startswith(f"{folder}/") and name.endswith(ending)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first_channel(item: Any, present: set[str]) -> Any:
    """Return an entry of nnU-Net 1 with the file of its first channel, which the list does not name."""
    image = item if isinstance(item, str) else item.get("image") if isinstance(item, Mapping) else None
    if not isinstance(image, str) or PurePosixPath(image).as_posix() in present:
        return item
    suffix = next((end for end in reversed(SUFFIXES) if image.endswith(end)), "")
    base = PurePosixPath(image.removesuffix(suffix)).as_posix()
    if f"{base}{_FIRST_CHANNEL}{suffix}" not in present:
        return item
    if f"{base}_0001{suffix}" in present:
        raise _nnunet_refusal("several channels (_0000, _0001, ...)", "one channel")
    file = f"{base}{_FIRST_CHANNEL}{suffix}"
    return file if isinstance(item, str) else {**item, "image": file}


def _nnunet_refusal(seen: str, expected: str) -> FindingError:
    return refuse(
        "foreign-layout",
        "the nnU-Net data set has an unsupported layout.",
        seen=f"{seen} (dataset.json)",
        expected=f"{expected}, or the format of the Medical Segmentation Decathlon",
        do="write dataset.json in the MSD format: " + _MSD_FORM,
    )


def _foreign(layout: str, *, seen: str, do: str) -> FindingError:
    return refuse(
        "foreign-layout",
        f"the folder has an unsupported layout: {layout}.",
        seen=seen,
        expected="volumes with masks in labels/, or a data set with dataset.json",
        do=do,
    )


def _is_bids(name: str) -> bool:
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
