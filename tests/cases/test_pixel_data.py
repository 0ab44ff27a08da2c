"""F19: nothing but pixels leaves `deidentify` in PixelData."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import JPEG2000Lossless

from cases.chest import ct_series, save_series
from support.identified import deidentify, results

COMMENT = b"Patient: SMITH^JOHN id 4711"


def add_tail(dataset: Dataset) -> None:
    dataset.PatientName = "Zimmermann^Adelheid"
    dataset.PixelData += b"Zimmermann^Adelheid 19410506 "


def add_comment(dataset: Dataset) -> None:
    dataset.PatientName, dataset.PatientID = "Smith^John", "4711"
    dataset.compress(JPEG2000Lossless, generate_instance_uid=False)
    stream = next(generate_frames(dataset.PixelData, number_of_frames=1))
    at = stream.index(b"\xff\x52")
    marker = b"\xff\x64" + struct.pack(">HH", len(COMMENT) + 4, 1) + COMMENT
    dataset.PixelData = encapsulate([stream[:at] + marker + stream[at:]])


@pytest.mark.case("deid_pixels", expected="the name is removed from the pixel data; the pixels are unchanged")
@pytest.mark.parametrize(
    ("change", "words"), [(add_tail, [b"Zimmermann", b"19410506"]), (add_comment, [b"SMITH", b"JOHN", b"4711"])]
)
def test_a_name_in_pixel_data_is_removed(
    tmp_path: Path, seen: Callable[[object], None], change: Callable[[Dataset], None], words: list[bytes]
) -> None:
    datasets = ct_series()[:6]
    for dataset in datasets:
        change(dataset)
    exit_code = deidentify(save_series(tmp_path / "cohort", datasets))
    seen(f"exit code {exit_code}")
    assert exit_code == 0
    new = sorted((tmp_path / "out").rglob("*.dcm"))
    left = [word for path in new for word in words if word in path.read_bytes().upper()]
    seen(f"{len(left)} of the words are left")
    assert not left
    assert results(tmp_path / "cohort")["actions"]["pixel-data-trimmed"] == len(datasets)
    by_position = {float(one.ImagePositionPatient[2]): one for one in map(pydicom.dcmread, new)}
    for dataset in datasets:
        if change is add_tail:
            dataset.PixelData = dataset.PixelData[: dataset.Rows * dataset.Columns * 2]
        assert np.array_equal(by_position[float(dataset.ImagePositionPatient[2])].pixel_array, dataset.pixel_array)
