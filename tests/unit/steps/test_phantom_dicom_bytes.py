"""`phantom.dicom_bytes`: the files of a series are those that pydicom itself would write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, RLELossless

from medweave_steps.phantom.dicom_bytes import SeriesEncoder, file_of


def shared_header() -> Any:
    dataset = pydicom.Dataset()
    dataset.SOPClassUID = CTImageStorage
    dataset.PatientName, dataset.PatientID = "Phantom^0001", "P-1"
    dataset.Rows = dataset.Columns = 4
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 1
    dataset.add_new(0x00280120, "SS", -976)
    return dataset


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless])
def test_a_file_has_the_bytes_that_pydicom_writes(syntax: str) -> None:
    encoder = SeriesEncoder(shared_header())
    files = []
    for number in (1, 2):
        image = encoder.image()
        image.SOPInstanceUID, image.InstanceNumber = f"1.2.{number}", str(number)
        image.ImagePositionPatient = ["0", "0", f"{number}.5"]
        image.PixelData = np.full((4, 4), number, "<i2").tobytes()
        image["PixelData"].VR = "OW"
        image.file_meta = pydicom.dataset.FileMetaDataset()
        image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID
        image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID
        image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        if syntax != ExplicitVRLittleEndian:
            image.compress(syntax, generate_instance_uid=False)
        files.append(encoder.file(image))
        assert files[-1] == file_of(image)
    assert files[0] != files[1]
