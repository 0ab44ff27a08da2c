"""A series of several acquisitions is refused; the numbering patterns of scanners are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from medweave_steps.io.dicom import header
from support.checked import cases_of, only_error
from support.dicom_builder import CtSeries, write_datasets

SERIES = CtSeries(shape=(12, 36, 34))


@pytest.fixture(params=["fast reader", "pydicom"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pydicom":
        monkeypatch.setattr(header, "_read_quickly", lambda *_: None)


def written(folder: Path, keyword: str, values: Sequence[object]) -> Path:
    datasets = SERIES.datasets()
    for dataset, value in zip(datasets, values, strict=True):
        if value is not None:
            setattr(dataset, keyword, value)
    write_datasets(datasets, folder)
    return folder


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("keyword", "values"),
    [
        ("AcquisitionNumber", [1, 2] * 6),
        ("AcquisitionNumber", [1, 1, 2, 2] * 3),
        ("AcquisitionNumber", [1, 2, 3] * 4),
        ("AcquisitionNumber", [1] * 5 + [2] + [1] * 6),
        ("AcquisitionTime", ["101500", "102000"] * 6),
        ("ConvolutionKernel", ["B30f", "B70f"] * 6),
        ("ConvolutionKernel", [["Br40", "2"], ["Br40", "3"]] * 6),
        ("ConvolutionKernel", ["B30f"] * 6 + ["B70f"] * 6),
        ("ContrastBolusAgent", [None, "IODINE"] * 6),
        ("ContrastBolusAgent", ["", "IODINE"] * 6),
        ("KVP", ["80", "140"] * 6),
        ("TemporalPositionIdentifier", [1, 2] * 6),
        ("NominalPercentageOfCardiacPhase", [30.0] * 6 + [75.0] * 6),
        ("ImageType", [["ORIGINAL", "PRIMARY", "AXIAL"], ["DERIVED", "PRIMARY", "AXIAL"]] * 6),
    ],
)
def test_mixed_acquisitions(tmp_path: Path, keyword: str, values: Sequence[object]) -> None:
    error = only_error(written(tmp_path, keyword, values))
    assert error.code == "mixed-acquisitions"
    assert keyword in error.seen
    assert "IODINE" not in error.seen


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("keyword", "values"),
    [
        ("AcquisitionNumber", [7] * 12),
        ("AcquisitionNumber", range(1, 13)),  # axial scans of one slice per rotation
        ("AcquisitionNumber", range(12, 0, -1)),
        ("AcquisitionNumber", [1] * 4 + [2] * 4 + [3] * 4),  # four slices per rotation
        ("AcquisitionNumber", [1, 7, 2, 8, 3, 9, 4, 10, 5, 11, 6, 12]),  # odd table positions first, then even ones
        ("AcquisitionNumber", [1, None] * 6),
        ("AcquisitionTime", [f"1015{second:02d}.{second * 7 % 10}" for second in range(12)]),
        ("AcquisitionTime", [f"1015{second:02d}" for second in (0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5)]),
        ("KVP", ["120", "120.0"] * 6),
        ("KVP", ["120"] * 6 + ["100"] * 6),
        ("ConvolutionKernel", ["B30f", "B30F "] * 6),
        ("ContrastBolusAgent", ["IODINE"] * 12),
    ],
)
def test_harmless_patterns(tmp_path: Path, keyword: str, values: Sequence[object]) -> None:
    assert len(cases_of(written(tmp_path, keyword, values))) == 1


FRAME_ATTRIBUTES = [
    ("FrameContentSequence", "StackID", ["1"] * 6 + ["2"] * 6),
    ("FrameContentSequence", "TemporalPositionIndex", [1, 2] * 6),
    ("FrameContentSequence", "FrameAcquisitionNumber", [1, 2] * 6),
    ("CTReconstructionSequence", "ConvolutionKernel", ["B30f"] * 6 + ["B70f"] * 6),
    ("CTXRayDetailsSequence", "KVP", [80.0, 140.0] * 6),
    ("MultienergyCTCharacteristicsSequence", "MonoenergeticEnergyEquivalent", [40.0] * 6 + [70.0] * 6),
]


@pytest.mark.parametrize(("sequence", "keyword", "values"), FRAME_ATTRIBUTES)
def test_frames_of_several_volumes(tmp_path: Path, sequence: str, keyword: str, values: Sequence[object]) -> None:
    dataset = SERIES.enhanced()
    for group, value in zip(dataset.PerFrameFunctionalGroupsSequence, values, strict=True):
        item = Dataset()
        setattr(item, keyword, value)
        setattr(group, sequence, [item])
    write_datasets([dataset], tmp_path)
    error = only_error(tmp_path)
    assert error.code == "mixed-acquisitions"
    assert keyword in error.seen
