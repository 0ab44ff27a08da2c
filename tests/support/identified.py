"""A cohort as a hospital would have it: names and numbers of people in headers, folders and files."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as DicomSequence

from medweave_steps.cli import main
from support.dicom_builder import CtSeries, segmentation, uid, write_datasets

NAME, PATIENT, BIRTH = "Quillfeather", "HOSP-774411", "19480217"
# None of this may appear in any byte that leaves home, in upper or lower case.
SECRETS = (
    NAME, "Rosamund", PATIENT, BIRTH, "Mulberry Lane", "ACC-559922", "St Elsewhere", "Grimshaw", "StationNine", "SN-DEVICE-88",
    "private words", "unknown words", "overlay words", "protocol words", "study words", "tracking words", "20190304",
)  # fmt: skip


def identified_series(key: str = "a", *, patient: str = PATIENT, name: str = NAME) -> list[Dataset]:
    """Return slices whose headers name a patient in many elements."""
    datasets = CtSeries(key=key, patient=patient).datasets()
    for number, dataset in enumerate(datasets):
        dataset.PatientName, dataset.PatientBirthDate, dataset.PatientSex = f"{name}^Rosamund", BIRTH, "F"
        dataset.PatientAge, dataset.PatientWeight = "071Y", "63"
        dataset.PatientAddress, dataset.AccessionNumber = "1 Mulberry Lane", "ACC-559922"
        dataset.InstitutionName, dataset.ReferringPhysicianName = "St Elsewhere", "Grimshaw^Ada"
        dataset.StationName, dataset.DeviceSerialNumber = "StationNine", "SN-DEVICE-88"
        dataset.ProtocolName, dataset.StudyDescription = "protocol words", "study words"
        dataset.StudyDate = dataset.SeriesDate = dataset.ContentDate = "20190304"
        dataset.AcquisitionDateTime = "20190304101500.25+0100"
        dataset.ManufacturerModelName = f"bought for {name}"  # nothing that the profile names: found by its words
        dataset.private_block(0x0029, "private words", create=True).add_new(1, "LO", f"private words {name}")
        dataset.add_new(0x00091001, "UN", b"private words")
        dataset.add_new(0x0018FFF1, "LO", "unknown words")
        dataset.add_new(0x60000010, "US", 8)
        dataset.add_new(0x60000022, "LO", "overlay words")
        dataset.add_new(0x60003000, "OW", b"overlay words ")
        reference = Dataset()
        reference.ReferencedSOPClassUID = dataset.SOPClassUID
        reference.ReferencedSOPInstanceUID = datasets[(number + 1) % len(datasets)].SOPInstanceUID
        reference.PatientName = f"{name}^Nested"
        dataset.SourceImageSequence = DicomSequence([reference])
    return datasets


def write_identified(folder: Path, *, syntax: str = "explicit") -> Path:
    """Write two patients, the first with a DICOM SEG; names of folders and files identify them too."""
    for key, patient, name in (("a", PATIENT, NAME), ("b", "HOSP-774412", "Fortescue")):
        datasets = identified_series(key, patient=patient, name=name)
        below = folder / f"{name}_Rosamund {BIRTH}"
        write_datasets(datasets, below, syntax=syntax, names=[f"{name}-{i:03d}.dcm" for i in range(len(datasets))])
        if key == "a":
            mask = np.zeros((len(datasets), datasets[0].Rows, datasets[0].Columns), np.uint8)
            mask[2, 3:6, 3:6] = 1
            truth = segmentation([without_private(one) for one in datasets], mask)
            truth.SegmentSequence[0].TrackingID = "tracking words"
            truth.SegmentSequence[0].TrackingUID = uid(key, "tracking")
            write_datasets([truth], below / "truth", names=[f"{name}.dcm"])
    (folder / "notes of Grimshaw.txt").write_text("about Rosamund")
    return folder


def without_private(dataset: Dataset) -> Dataset:
    """Return a copy that highdicom takes as a source: it copies attributes of the study, and stumbles over unknown ones."""
    copied = copy.deepcopy(dataset)
    for tag in (0x0018FFF1, 0x00091001):
        del copied[tag]
    return copied


def deidentify(folder: Path, *more: str, name: str = "out") -> int:
    """Run the verb on `folder`; write NAME, NAME-home and NAME.json next to it. All runs there share one key."""
    return main(words_of(folder, *more, name=name))


def words_of(folder: Path, *more: str, name: str = "out") -> list[str]:
    """Return the command line of `deidentify`."""
    parent = folder.parent
    options = {
        "--cohort": folder, "--output": parent / name, "--home": parent / f"{name}-home", "--key": parent / "key",
        "--run-report": parent / f"{name}.json",
    }  # fmt: skip
    return ["deidentify", *(str(word) for pair in options.items() for word in pair), "--num-threads", "1", *more]


def results(folder: Path, name: str = "out") -> dict:
    """Return the results in the report of a run."""
    return json.loads((folder.parent / f"{name}.json").read_text())["results"]


def notices(folder: Path, name: str = "out") -> str:
    """Return the notices in the report of a run, one a line."""
    return "\n".join(json.loads((folder.parent / f"{name}.json").read_text())["notices"])


def card(folder: Path, name: str = "out") -> dict:
    """Return the cohort card of the output of a run."""
    return json.loads((folder.parent / name / "cohort_card.json").read_text())


def way_back(folder: Path, name: str = "out") -> dict:
    """Return the re-identification map of a run."""
    return json.loads((folder.parent / f"{name}-home" / "way_back.json").read_text())


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def data(folder: Path) -> dict[str, bytes]:
    """Return the files as `tree` does, without the cohort's card."""
    return {name: content for name, content in tree(folder).items() if name != "cohort_card.json"}


def uids_of(dataset: Dataset) -> set[str]:
    """Return every UID of a dataset and of the items nested in it."""
    return {
        str(uid)
        for element in dataset.iterall()
        if element.VR == "UI" and element.value
        for uid in ([element.value] if isinstance(element.value, str) else element.value)
    }
